"""The run ledger in an SQL database."""

from __future__ import annotations

from idempotent.adapters.spark.ledger.sql.store import SqlRunStore

__all__ = ["SqlRunStore"]
