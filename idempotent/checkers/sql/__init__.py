"""Keys in a table of MySQL, MariaDB, PostgreSQL or SQLite."""

from __future__ import annotations

from idempotent.checkers.sql.checker import SqlChecker
from idempotent.checkers.sql.offsets import OffsetChecker
from idempotent.checkers.sql.transactional import TransactionalSqlChecker

__all__ = ["OffsetChecker", "SqlChecker", "TransactionalSqlChecker"]
