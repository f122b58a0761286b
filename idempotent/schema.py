"""The only definition of the library's tables: their names, and the tables of checkers, of Spark and of an outbox.

Times are BIGINT microseconds since 1970-01-01 UTC, by the clock of the store. Each migration keeps a frozen
copy of the tables it creates; a test proves that all migrations together create exactly these tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from sqlalchemy import (
    DDL,
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    String,
    Table,
    event,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import BLANK_SCHEMA, SchemaItem
from sqlalchemy.types import TypeEngine

from idempotent.errors import ConfigurationError

DEFAULT_TABLE: Final = "deduplicate_tbl"
"""The default table of checkers and migrations."""

MAX_TABLE_NAME: Final = 40
"""Longest table name in characters: ``ix_<table>_failures_expires_at`` must fit PostgreSQL's limit of 63."""

OUTPUT_REF_LENGTH: Final = 1000
"""Width of ``output_ref``, the location of a run's output, in characters."""

DRIVER_LENGTH: Final = 255
"""Width of ``driver``, the host and the process that had a run last, in characters."""

KEY_TEXT_LENGTH: Final = 255
"""Width of ``k``, the readable text of a key, in characters. The key itself is ``key_hash``."""

ERROR_TEXT_LENGTH: Final = 1000
"""Width of ``last_error`` in characters."""

ID_LENGTH: Final = 255
"""Longest message id, subject and order key, in characters."""
DESTINATION_LENGTH: Final = 100
"""Longest name of a destination, in characters."""
LANE_BYTES: Final = 16

SCHEMA_NAME: Final = re.compile(r"[^\x00-\x1f\x7f?%{}:\\]{1,64}")
"""Names of schemas that can stand in a statement, in quotes: the markers of parameters cannot."""
SCHEMA_RULE: Final = "a schema has 1 to 64 printable characters in its name, and none of ? % { } : \\"

_NAME = re.compile(r"(?!(?i:pg_|sqlite_))[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_OURS = "idempotent_consumer"


def validate_table_name(name: str) -> str:
    """Return `name` if it is a valid name for the tables.

    A valid name has 1 to 40 ASCII letters, digits and underscores, does not start with a digit, nor with "pg_" or
    "sqlite_", as the databases' own tables do, and has no schema prefix, because the tables live in the connection's
    schema.

    Raises:
        ConfigurationError: the name is invalid. The message states the rule.
    """
    given: object = name
    if not isinstance(given, str) or not _NAME.fullmatch(given) or len(given) > MAX_TABLE_NAME:
        raise ConfigurationError(
            f"invalid table name {name!r}: use 1 to {MAX_TABLE_NAME} ASCII letters, digits and underscores, "
            "not starting with a digit, pg_ or sqlite_, without a schema prefix"
        )
    return name


def validate_schema(name: str | None) -> str | None:
    """Return `name` if it is None or a name of a schema (MySQL: a database) that statements can contain.

    Raises:
        ConfigurationError: it is not. The message states the rule.
    """
    given: object = name
    if given is None or (isinstance(given, str) and SCHEMA_NAME.fullmatch(given)):
        return name
    raise ConfigurationError(f"invalid schema {name!r}: {SCHEMA_RULE}")


def failures_name(table: str) -> str:
    """Name of the failures table that belongs to `table`."""
    return f"{table}_failures"


def offsets_name(table: str) -> str:
    """Name of the offsets table that belongs to `table`."""
    return f"{table}_offsets"


def runs_name(table: str) -> str:
    """Name of the table of runs that belongs to `table`."""
    return f"{table}_runs"


def run_claims_name(table: str) -> str:
    """Name of the table of runs' claims that belongs to `table`."""
    return f"{table}_run_claims"


def outbox_name(table: str) -> str:
    """Name of the outbox that belongs to `table`."""
    return f"{table}_outbox"


def version_name(table: str) -> str:
    """Name of the table in which the packaged migrations record the revision of `table`."""
    return f"{table}_alembic_version"


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
    table = _our_table(
        metadata,
        name,
        Column("key_hash", _binary(20), nullable=False),
        Column("k", _exact_text(KEY_TEXT_LENGTH), nullable=False),
        Column("status", SmallInteger, nullable=False),
        Column("owner", _binary(16), nullable=False),
        Column("fence", BigInteger, nullable=False),
        Column("lease_until", BigInteger, nullable=True),
        Column("fingerprint", _binary(20), nullable=True),
        Column("result", _long_binary(), nullable=True),
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
    return _our_table(
        metadata,
        name,
        Column("key_hash", _binary(20), nullable=False),
        Column("k", _exact_text(KEY_TEXT_LENGTH), nullable=False),
        Column("attempts", Integer, nullable=False),
        Column("last_error", _exact_text(ERROR_TEXT_LENGTH), nullable=False),
        Column("update_at", BigInteger, nullable=False),
        Column("expires_at", BigInteger, nullable=False),
        Index(f"ix_{name}_expires_at", "expires_at"),
    )


def _offsets(metadata: MetaData, name: str) -> Table:
    return _our_table(
        metadata,
        name,
        Column("key_hash", _binary(20), nullable=False),
        Column("k", _exact_text(KEY_TEXT_LENGTH), nullable=False),
        Column("next_offset", BigInteger, nullable=False),
        Column("owner", _binary(16), nullable=True),
        Column("update_at", BigInteger, nullable=False),
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
    return _our_table(
        metadata,
        name,
        Column("token", BigInteger, nullable=False, autoincrement=False),
        Column("run_hash", _binary(20), nullable=False),
        Column("generation", Integer, nullable=False),
        Column("k", _exact_text(KEY_TEXT_LENGTH), nullable=False),
        Column("state", SmallInteger, nullable=False),
        Column("epoch", Integer, nullable=False),
        Column(
            "fingerprint", LargeBinary().with_variant(mysql.VARBINARY(64), "mysql", "mariadb"), nullable=True
        ),
        Column("output_ref", _exact_text(OUTPUT_REF_LENGTH), nullable=True),
        Column("lease_until", BigInteger, nullable=False),
        Column("began_at", BigInteger, nullable=False),
        Column("update_at", BigInteger, nullable=False),
        Column("retention", BigInteger, nullable=False),
        Column("expires_at", BigInteger, nullable=True),
        Column("prepared_epoch", Integer, nullable=True),
        Column("manifest", _long_binary(), nullable=True),
        Column("driver", _exact_text(DRIVER_LENGTH), nullable=True),
        Index(f"uq_{name}_generation", "run_hash", "generation", unique=True),
        Index(f"ix_{name}_expires_at", "expires_at"),
        key="token",
    )


def _run_claims(metadata: MetaData, name: str) -> Table:
    return _our_table(
        metadata,
        name,
        Column("key_hash", _binary(20), nullable=False),
        Column("run", BigInteger, nullable=False),
        Column("state", SmallInteger, nullable=False),
        Column("epoch", Integer, nullable=True),
        Column("attempt", _binary(16), nullable=True),
        Column("lease_until", BigInteger, nullable=True),
        Column("fingerprint", _binary(8), nullable=True),
        Column("result", _long_binary(), nullable=True),
        Column("frame", SmallInteger, nullable=True),
        # PREPARE counts the claims of one attempt, and reads no rows for it.
        Index(f"ix_{name}_mark", "run", "state", "epoch"),
    )


@dataclass(frozen=True, slots=True)
class OutboxTables:
    """The tables of one outbox.

    Attributes:
        waiting: one row for each message that is to be published.
        delayed: messages that wait for their time.
        held: why the messages of a lane are not published, and when they are tried again.
        leases: for each broker, which relay has which bucket, and which relays there are.
    """

    waiting: Table
    delayed: Table
    held: Table
    leases: Table


def outbox_tables(metadata: MetaData, table: str = DEFAULT_TABLE) -> OutboxTables:
    """Define the tables of the outbox of `table` in `metadata`, or return those that an earlier call defined.

    Only an outbox needs them.

    Raises:
        ConfigurationError: the name is invalid, or `metadata` already holds another table of that name.
    """
    name = outbox_name(validate_table_name(table))
    return OutboxTables(
        waiting=_our_table(
            metadata,
            name,
            *_message_columns(),
            # The order in which a relay reads a bucket.
            Index(f"ix_{name}_bucket", "bucket", "id"),
            key="id",
            numbered=True,
        ),
        delayed=_our_table(
            metadata,
            f"{name}_delayed",
            *_message_columns(),
            Column("due_at", BigInteger, nullable=False),
            Index(f"ix_{name}_due", "due_at"),
            key="id",
            numbered=True,
        ),
        held=_our_table(
            metadata,
            f"{name}_held",
            Column("bucket", SmallInteger, nullable=False, autoincrement=False),
            Column("lane", _binary(LANE_BYTES), nullable=False),
            Column("first_id", BigInteger, nullable=False),
            Column("attempts", Integer, nullable=False),
            Column("reason", _exact_text(ERROR_TEXT_LENGTH), nullable=False),
            Column("held_at", BigInteger, nullable=False),
            Column("due_at", BigInteger, nullable=False),
            Index(f"ix_{name}_held_due", "due_at"),
            key=("bucket", "lane"),
        ),
        leases=_our_table(
            metadata,
            f"{name}_leases",
            Column("destination", _exact_text(DESTINATION_LENGTH), nullable=False),
            Column("slot", Integer, nullable=False, autoincrement=False),
            Column("owner", _binary(LANE_BYTES), nullable=True),
            Column("lease_us", BigInteger, nullable=False),
            Column("lease_until", BigInteger, nullable=False),
            key=("destination", "slot"),
        ),
    )


def _message_columns() -> list[SchemaItem]:
    return [
        Column("id", BigInteger().with_variant(Integer(), "sqlite"), nullable=False, autoincrement=True),
        Column("bucket", SmallInteger, nullable=False),
        Column("lane", _binary(LANE_BYTES), nullable=False),
        Column("message_id", _exact_text(ID_LENGTH), nullable=False),
        Column("destination", _exact_text(DESTINATION_LENGTH), nullable=False),
        Column("subject", _exact_text(ID_LENGTH), nullable=False),
        Column("order_key", _exact_text(ID_LENGTH), nullable=True),
        Column("headers", _long_binary(), nullable=True),
        Column("body", _long_binary(), nullable=True),
        Column("created_at", BigInteger, nullable=False),
    ]


def _our_table(
    metadata: MetaData,
    name: str,
    *columns: SchemaItem,
    key: str | tuple[str, ...] = "key_hash",
    numbered: bool = False,
) -> Table:
    """Define a table, or return the one that an earlier call defined.

    Args:
        metadata: where to define it.
        name: its name.
        columns: its columns and indexes.
        key: the columns of its primary key.
        numbered: the database numbers its rows, and never gives a number twice.

    Raises:
        ConfigurationError: `metadata` holds another table of that name.
    """
    known = metadata.tables.get(name)
    if known is not None:
        if _OURS in known.info:
            return known
        raise ConfigurationError(f"the metadata has another table {name!r}: choose another name with table=")
    return Table(
        name,
        metadata,
        *columns,
        # Named, so that an application's naming convention does not change the name of the constraint.
        PrimaryKeyConstraint(*((key,) if isinstance(key, str) else key), name=f"pk_{name}"),
        schema=BLANK_SCHEMA,
        info={_OURS: True},
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
        sqlite_with_rowid=numbered,
        sqlite_autoincrement=numbered,
    )


def _binary(length: int) -> TypeEngine[bytes]:
    """Exactly so many bytes."""
    return LargeBinary().with_variant(mysql.BINARY(length), "mysql", "mariadb")


def _exact_text(length: int) -> TypeEngine[str]:
    """At most so many characters, compared exactly."""
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return String(length).with_variant(exact, "mysql", "mariadb")


def _long_binary() -> TypeEngine[bytes]:
    """As many bytes as the server takes."""
    return LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
