"""When a consuming process ends that nobody told to."""

from __future__ import annotations

from idempotent.errors import IdempotentError


class ConsumerEndedError(IdempotentError):
    """The consuming process ended by itself."""
