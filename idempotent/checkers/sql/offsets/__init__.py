"""Positions instead of keys: one row for each partition."""

from idempotent.checkers.sql.offsets.checker import OffsetChecker

__all__ = ["OffsetChecker"]
