"""Create, change, check and remove the deduplication tables.

Either the library runs the migrations (`upgrade`), or the application's own Alembic history does
(`create_dedup_table`, `create_run_tables`, `create_outbox_tables` and the functions that undo them).
Checkers never create or alter tables.
"""

from idempotent.migrations.drift import Drift, DriftKind, check
from idempotent.migrations.own_history import (
    create_dedup_table,
    create_outbox_tables,
    create_run_tables,
    drop_dedup_table,
    drop_outbox_tables,
    drop_run_tables,
    ignore_dedup_tables,
)
from idempotent.migrations.runner import current, downgrade, upgrade

__all__ = [
    "Drift",
    "DriftKind",
    "check",
    "create_dedup_table",
    "create_outbox_tables",
    "create_run_tables",
    "current",
    "downgrade",
    "drop_dedup_table",
    "drop_outbox_tables",
    "drop_run_tables",
    "ignore_dedup_tables",
    "upgrade",
]
