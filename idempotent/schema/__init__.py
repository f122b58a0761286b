"""The only definition of the library's tables.

Times are BIGINT microseconds since 1970-01-01 UTC, by the clock of the store. Each migration keeps a frozen
copy of the tables it creates; a test proves that all migrations together create exactly these tables.
"""

from idempotent.schema.keys import DedupTables, dedup_tables
from idempotent.schema.names import (
    DEFAULT_TABLE,
    ERROR_TEXT_LENGTH,
    KEY_TEXT_LENGTH,
    MAX_TABLE_NAME,
    OUTPUT_REF_LENGTH,
    failures_name,
    offsets_name,
    outbox_name,
    run_claims_name,
    runs_name,
    validate_table_name,
    version_name,
)
from idempotent.schema.outbox import OutboxTables, outbox_tables
from idempotent.schema.runs import RunTables, run_tables

__all__ = [
    "DEFAULT_TABLE",
    "ERROR_TEXT_LENGTH",
    "KEY_TEXT_LENGTH",
    "MAX_TABLE_NAME",
    "OUTPUT_REF_LENGTH",
    "DedupTables",
    "OutboxTables",
    "RunTables",
    "dedup_tables",
    "failures_name",
    "offsets_name",
    "outbox_name",
    "outbox_tables",
    "run_claims_name",
    "run_tables",
    "runs_name",
    "validate_table_name",
    "version_name",
]
