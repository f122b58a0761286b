"""The tables of checkers: keys, failures and offsets."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import DDL, BigInteger, Column, Index, Integer, MetaData, SmallInteger, Table, event

from idempotent.schema.columns import binary, exact_text, long_binary, our_table
from idempotent.schema.names import (
    DEFAULT_TABLE,
    ERROR_TEXT_LENGTH,
    KEY_TEXT_LENGTH,
    failures_name,
    offsets_name,
    validate_table_name,
)


@dataclass(frozen=True, slots=True)
class DedupTables:
    """The tables of one store.

    Attributes:
        keys: one row for each key.
        failures: attempts and last error, written only when a handler fails.
        offsets: one row for each partition, for checkers that keep positions instead of keys.
    """

    keys: Table
    failures: Table
    offsets: Table


def dedup_tables(metadata: MetaData, table: str = DEFAULT_TABLE) -> DedupTables:
    """Define the tables in `metadata`, or return those that an earlier call defined there.

    An application calls ``dedup_tables(Base.metadata)`` so that its own Alembic autogenerate knows them.
    They ignore a default schema of `metadata`.

    Raises:
        ConfigurationError: the name is invalid, or `metadata` already holds another table of that name.
    """
    validate_table_name(table)
    return DedupTables(
        keys=_keys(metadata, table),
        failures=_failures(metadata, failures_name(table)),
        offsets=_offsets(metadata, offsets_name(table)),
    )


def _keys(metadata: MetaData, name: str) -> Table:
    table = our_table(
        metadata,
        name,
        Column("key_hash", binary(20), nullable=False),
        Column("k", exact_text(KEY_TEXT_LENGTH), nullable=False),
        Column("status", SmallInteger, nullable=False),
        Column("owner", binary(16), nullable=False),
        Column("fence", BigInteger, nullable=False),
        Column("lease_until", BigInteger, nullable=True),
        Column("fingerprint", binary(20), nullable=True),
        Column("result", long_binary(), nullable=True),
        Column("update_at", BigInteger, nullable=False),
        Column("expires_at", BigInteger, nullable=False),
        Index(f"ix_{name}_expires_at", "expires_at"),
    )
    # Every key is updated once: with free space on the page PostgreSQL does not update the indexes. An event,
    # because SQLAlchemy 2.0 has no table option for it.
    fill = DDL("ALTER TABLE %(fullname)s SET (fillfactor = 70)")  # type: ignore[no-untyped-call]
    event.listen(table, "after_create", fill.execute_if(dialect="postgresql"))
    return table


def _failures(metadata: MetaData, name: str) -> Table:
    return our_table(
        metadata,
        name,
        Column("key_hash", binary(20), nullable=False),
        Column("k", exact_text(KEY_TEXT_LENGTH), nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("last_error", exact_text(ERROR_TEXT_LENGTH), nullable=False),
        Column("update_at", BigInteger, nullable=False),
        Column("expires_at", BigInteger, nullable=False),
        Index(f"ix_{name}_expires_at", "expires_at"),
    )


def _offsets(metadata: MetaData, name: str) -> Table:
    return our_table(
        metadata,
        name,
        Column("key_hash", binary(20), nullable=False),
        Column("k", exact_text(KEY_TEXT_LENGTH), nullable=False),
        Column("next_offset", BigInteger, nullable=False),
        Column("owner", binary(16), nullable=True),
        Column("update_at", BigInteger, nullable=False),
    )
