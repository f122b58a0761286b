"""The checkers: memory, SQL, transactional SQL, Redis, and the base of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from idempotent.checker import AbstractIdempotentChecker
from idempotent.checkers.memory import MemoryChecker
from idempotent.checkers.sql import SqlChecker
from idempotent.checkers.transactional import TransactionalSqlChecker
from idempotent.checkers.urls import checker_from_url

if TYPE_CHECKING:
    from idempotent.checkers.redis import RedisChecker

__all__ = [
    "AbstractIdempotentChecker",
    "MemoryChecker",
    "RedisChecker",
    "SqlChecker",
    "TransactionalSqlChecker",
    "checker_from_url",
]


def __getattr__(name: str) -> Any:
    # redis is an optional dependency: import it when it is asked for.
    if name == "RedisChecker":
        from idempotent.checkers.redis import RedisChecker

        return RedisChecker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
