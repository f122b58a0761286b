"""The old name of `idempotent.adapters.activemq`, for one release."""

from __future__ import annotations

import warnings

from idempotent.adapters.activemq import AckMode, StompAdapter

__all__ = ["AckMode", "StompAdapter"]

warnings.warn(
    "idempotent.adapters.stomp is now idempotent.adapters.activemq; the old name goes with the next release",
    DeprecationWarning,
    stacklevel=2,
)
