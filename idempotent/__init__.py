"""Idempotent consumers: the effect of every message once, although brokers deliver at least once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from idempotent.claims import Claim, Guarantee
from idempotent.consumer import AsyncConsumer, Consumer, current_claim
from idempotent.errors import (
    ConfigurationError,
    DeadKeyError,
    DuplicateError,
    FingerprintMismatchError,
    IdempotentError,
    InProgressError,
    MissingKeyError,
    ResultNotStoredError,
    StoreError,
)
from idempotent.function import idempotent, once
from idempotent.message import Message
from idempotent.outcomes import Action, Outcome, Result
from idempotent.policy import Backoff
from idempotent.registry import Registry, consumer

if TYPE_CHECKING:
    from idempotent.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "Action",
    "AsyncConsumer",
    "Backoff",
    "Claim",
    "ConfigurationError",
    "Consumer",
    "DeadKeyError",
    "DuplicateError",
    "FingerprintMismatchError",
    "Guarantee",
    "IdempotentError",
    "InProgressError",
    "Message",
    "MissingKeyError",
    "Outcome",
    "Registry",
    "Result",
    "ResultNotStoredError",
    "StoreError",
    "Worker",
    "consumer",
    "current_claim",
    "idempotent",
    "once",
]

if not TYPE_CHECKING:  # else type checkers would take any name for one of this module

    def __getattr__(name: str) -> Any:
        # The worker imports threads, signals and adapters; a consumer that is called directly needs none of them.
        if name == "Worker":
            from idempotent.worker import Worker

            return Worker
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
