"""The checkers: memory, SQL, transactional SQL, Redis, and the base of your own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from idempotent.checker import AbstractIdempotentChecker
from idempotent.checkers.attempts import AttemptChecker
from idempotent.checkers.memory import MemoryChecker
from idempotent.checkers.urls import checker_from_url

if TYPE_CHECKING:
    from idempotent.checkers.offsets import OffsetChecker
    from idempotent.checkers.redis import RedisChecker
    from idempotent.checkers.sql import SqlChecker
    from idempotent.checkers.transactional import TransactionalSqlChecker

__all__ = [
    "AbstractIdempotentChecker",
    "AttemptChecker",
    "MemoryChecker",
    "OffsetChecker",
    "RedisChecker",
    "SqlChecker",
    "TransactionalSqlChecker",
    "checker_from_url",
]

# What they bring is imported when one is asked for: redis may be missing, SQLAlchemy is large.
_MODULES: Final = {
    "OffsetChecker": "offsets",
    "RedisChecker": "redis",
    "SqlChecker": "sql",
    "TransactionalSqlChecker": "transactional",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
