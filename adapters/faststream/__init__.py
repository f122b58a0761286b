"""FastStream: `IdempotentMiddleware`, behind which a subscriber handles a message once for each key."""

from __future__ import annotations

from idempotent.errors import MissingExtraError

try:
    import faststream  # noqa: F401 - only checks that it is installed
except ImportError as error:
    raise MissingExtraError("faststream", "faststream") from error

from idempotent.adapters.faststream.middleware import IdempotentMiddleware, message_id, session

__all__ = ["IdempotentMiddleware", "message_id", "session"]
