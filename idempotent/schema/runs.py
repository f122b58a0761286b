"""The tables of the run ledger of Spark."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, SmallInteger, Table
from sqlalchemy.dialects import mysql

from idempotent.schema.columns import binary, exact_text, long_binary, our_table
from idempotent.schema.names import (
    DEFAULT_TABLE,
    KEY_TEXT_LENGTH,
    OUTPUT_REF_LENGTH,
    run_claims_name,
    runs_name,
    validate_table_name,
)


@dataclass(frozen=True, slots=True)
class RunTables:
    """The tables of one run ledger. They are independent of the key tables; only their names begin alike.

    Attributes:
        runs: one row for each generation of a run.
        claims: one row for each key that a run has claimed.
    """

    runs: Table
    claims: Table


def run_tables(metadata: MetaData, table: str = DEFAULT_TABLE) -> RunTables:
    """Define the tables of the run ledger of `table` in `metadata`, or return those that an earlier call defined.

    Only Spark needs them.

    Raises:
        ConfigurationError: the name is invalid, or `metadata` already holds another table of that name.
    """
    validate_table_name(table)
    return RunTables(
        runs=_runs(metadata, runs_name(table)),
        claims=_run_claims(metadata, run_claims_name(table)),
    )


def _runs(metadata: MetaData, name: str) -> Table:
    return our_table(
        metadata,
        name,
        Column("token", BigInteger, nullable=False, autoincrement=False),
        Column("run_hash", binary(20), nullable=False),
        Column("generation", Integer, nullable=False),
        Column("k", exact_text(KEY_TEXT_LENGTH), nullable=False),
        Column("state", SmallInteger, nullable=False),
        Column("epoch", Integer, nullable=False),
        Column(
            "fingerprint", LargeBinary().with_variant(mysql.VARBINARY(64), "mysql", "mariadb"), nullable=True
        ),
        Column("output_ref", exact_text(OUTPUT_REF_LENGTH), nullable=True),
        Column("lease_until", BigInteger, nullable=False),
        Column("began_at", BigInteger, nullable=False),
        Column("update_at", BigInteger, nullable=False),
        Column("ended_at", BigInteger, nullable=True),
        Column("prepared_epoch", Integer, nullable=True),
        Column("manifest", long_binary(), nullable=True),
        Index(f"uq_{name}_generation", "run_hash", "generation", unique=True),
        Index(f"ix_{name}_ended_at", "ended_at"),
        key="token",
    )


def _run_claims(metadata: MetaData, name: str) -> Table:
    return our_table(
        metadata,
        name,
        Column("key_hash", binary(20), nullable=False),
        Column("run", BigInteger, nullable=False),
        Column("state", SmallInteger, nullable=False),
        Column("epoch", Integer, nullable=True),
        Column("attempt", binary(16), nullable=True),
        Column("lease_until", BigInteger, nullable=True),
        Column("fingerprint", binary(8), nullable=True),
        Column("result", long_binary(), nullable=True),
        Column("frame", SmallInteger, nullable=True),
        # PREPARE counts the claims of one attempt, and reads no rows for it.
        Index(f"ix_{name}_mark", "run", "state", "epoch"),
    )
