"""The checkers: memory, SQL, transactional SQL, Redis, and the base class for your own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.memory import AttemptChecker, MemoryChecker
from idempotent.checkers.urls import checker_from_url

if TYPE_CHECKING:
    from idempotent.checkers.redis import RedisChecker
    from idempotent.checkers.sql import OffsetChecker, SqlChecker, TransactionalSqlChecker

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

# Imported on first use: redis may not be installed, and SQLAlchemy is large.
_MODULES: Final = {
    "OffsetChecker": "sql",
    "RedisChecker": "redis",
    "SqlChecker": "sql",
    "TransactionalSqlChecker": "sql",
}

if not TYPE_CHECKING:  # else type checkers would take any name for one of this module

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
