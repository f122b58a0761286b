"""Keys in a table of MySQL, MariaDB, PostgreSQL or SQLite."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from idempotent.checkers.sql.checker import SqlChecker
    from idempotent.checkers.sql.offsets import OffsetChecker
    from idempotent.checkers.sql.transactional import TransactionalSqlChecker

__all__ = ["OffsetChecker", "SqlChecker", "TransactionalSqlChecker"]

# SqlChecker needs none of SQLAlchemy's ORM, which the transactional ones import.
_MODULES: Final = {
    "OffsetChecker": "offsets",
    "SqlChecker": "checker",
    "TransactionalSqlChecker": "transactional",
}

if not TYPE_CHECKING:  # else type checkers would take any name for one of this module

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
