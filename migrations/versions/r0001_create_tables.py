"""Create the tables: of checkers, of Spark's run ledger, and of the outbox."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Of PostgreSQL's pages, in percent: SQLAlchemy 2.0 has no option for it.
_FILLFACTOR: Final = "fillfactor"

Part: TypeAlias = Callable[[sa.MetaData, str], None]
"""Defines the tables of one part, given the name of the key table."""

Find: TypeAlias = Callable[[str], Any]
"""Finds a table that is there already, with its `indexes` by name."""


def define_keys(metadata: sa.MetaData, table: str) -> None:
    """Define the keys, failures and offsets of checkers."""
    _define(
        metadata,
        table,
        sa.Column("key_hash", _binary(20), nullable=False),
        sa.Column("k", _text(255), nullable=False),
        sa.Column("status", sa.SmallInteger(), nullable=False),
        sa.Column("owner", _binary(16), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("fingerprint", _binary(20), nullable=True),
        sa.Column("result", _blob(), nullable=True),
        sa.Column("update_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key_hash", name=f"pk_{table}"),
        sa.Index(f"ix_{table}_expires_at", "expires_at"),
        info={_FILLFACTOR: 70},
    )
    failures = f"{table}_failures"
    _define(
        metadata,
        failures,
        sa.Column("key_hash", _binary(20), nullable=False),
        sa.Column("k", _text(255), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("last_error", _text(1000), nullable=False),
        sa.Column("update_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key_hash", name=f"pk_{failures}"),
        sa.Index(f"ix_{failures}_expires_at", "expires_at"),
    )
    offsets = f"{table}_offsets"
    _define(
        metadata,
        offsets,
        sa.Column("key_hash", _binary(20), nullable=False),
        sa.Column("k", _text(255), nullable=False),
        sa.Column("next_offset", sa.BigInteger(), nullable=False),
        sa.Column("owner", _binary(16), nullable=True),
        sa.Column("update_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key_hash", name=f"pk_{offsets}"),
    )


def define_runs(metadata: sa.MetaData, table: str) -> None:
    """Define the run ledger of Spark: the runs, and their claims."""
    runs, claims = f"{table}_runs", f"{table}_run_claims"
    _define(
        metadata,
        runs,
        sa.Column("token", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("run_hash", _binary(20), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("k", _text(255), nullable=False),
        sa.Column("state", sa.SmallInteger(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("fingerprint", _varbinary(64), nullable=True),
        sa.Column("output_ref", _text(1000), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=False),
        sa.Column("began_at", sa.BigInteger(), nullable=False),
        sa.Column("update_at", sa.BigInteger(), nullable=False),
        sa.Column("retention", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("prepared_epoch", sa.Integer(), nullable=True),
        sa.Column("manifest", _blob(), nullable=True),
        sa.Column("driver", _text(255), nullable=True),
        sa.PrimaryKeyConstraint("token", name=f"pk_{runs}"),
        sa.Index(f"uq_{runs}_generation", "run_hash", "generation", unique=True),
        sa.Index(f"ix_{runs}_expires_at", "expires_at"),
    )
    _define(
        metadata,
        claims,
        sa.Column("key_hash", _binary(20), nullable=False),
        sa.Column("run", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.SmallInteger(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=True),
        sa.Column("attempt", _binary(16), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("fingerprint", _binary(8), nullable=True),
        sa.Column("result", _blob(), nullable=True),
        sa.Column("frame", sa.SmallInteger(), nullable=True),
        sa.PrimaryKeyConstraint("key_hash", name=f"pk_{claims}"),
        sa.Index(f"ix_{claims}_mark", "run", "state", "epoch"),
    )


def define_outbox(metadata: sa.MetaData, table: str) -> None:
    """Define the outbox: what waits, what is delayed, what is held, and the leases of relays."""
    name = f"{table}_outbox"
    _define(
        metadata,
        name,
        *_message(name),
        sa.Index(f"ix_{name}_bucket", "bucket", "id"),
        numbered=True,
    )
    _define(
        metadata,
        f"{name}_delayed",
        *_message(f"{name}_delayed"),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Index(f"ix_{name}_due", "due_at"),
        numbered=True,
    )
    _define(
        metadata,
        f"{name}_held",
        sa.Column("bucket", sa.SmallInteger(), nullable=False, autoincrement=False),
        sa.Column("lane", _binary(16), nullable=False),
        sa.Column("first_id", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("reason", _text(1000), nullable=False),
        sa.Column("held_at", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("bucket", "lane", name=f"pk_{name}_held"),
        sa.Index(f"ix_{name}_held_due", "due_at"),
    )
    _define(
        metadata,
        f"{name}_leases",
        sa.Column("destination", _text(100), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("owner", _binary(16), nullable=True),
        sa.Column("lease_us", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("destination", "slot", name=f"pk_{name}_leases"),
    )


PARTS: Final[tuple[Part, ...]] = (define_keys, define_runs, define_outbox)


def tables(table: str, *parts: Part) -> sa.MetaData:
    """The tables of these parts; without parts, of all."""
    metadata = sa.MetaData()
    for define in parts or PARTS:
        define(metadata, table)
    return metadata


def upgrade(op: Operations, table: str, *parts: Part, find: Find = lambda _: None) -> None:
    """Create the missing tables and indexes: an earlier run may have been killed between any two statements."""
    for name, definition in tables(table, *parts).tables.items():
        found = find(name)
        if found is None:
            create(op, definition)
            continue
        for index in definition.indexes:
            if index.name not in found.indexes:
                op.execute(sa.schema.CreateIndex(index))


def create(op: Operations, definition: sa.Table) -> None:
    """Create one table, with its indexes."""
    context = op.get_context()
    context.impl.create_table(definition)
    if _FILLFACTOR in definition.info and context.dialect.name == "postgresql":
        quoted = context.dialect.identifier_preparer.quote(definition.name)
        op.execute(sa.text(f"ALTER TABLE {quoted} SET (fillfactor = {definition.info[_FILLFACTOR]})"))


def downgrade(op: Operations, table: str, *parts: Part, **_: object) -> None:
    """Drop the tables. Alembic gives both functions the same arguments."""
    for definition in tables(table, *parts).tables.values():
        op.execute(sa.schema.DropTable(definition, if_exists=True))


def _message(name: str) -> list[sa.schema.SchemaItem]:
    return [
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False, autoincrement=True
        ),
        sa.Column("bucket", sa.SmallInteger(), nullable=False),
        sa.Column("lane", _binary(16), nullable=False),
        sa.Column("message_id", _text(255), nullable=False),
        sa.Column("destination", _text(100), nullable=False),
        sa.Column("subject", _text(255), nullable=False),
        sa.Column("order_key", _text(255), nullable=True),
        sa.Column("headers", _blob(), nullable=True),
        sa.Column("body", _blob(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=f"pk_{name}"),
    ]


def _define(
    metadata: sa.MetaData,
    name: str,
    *columns: sa.schema.SchemaItem,
    numbered: bool = False,
    info: dict[str, int] | None = None,
) -> None:
    sa.Table(
        name,
        metadata,
        *columns,
        info=info,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
        sqlite_with_rowid=numbered,
        sqlite_autoincrement=numbered,
    )


def _binary(length: int) -> sa.types.TypeEngine[bytes]:
    return sa.LargeBinary().with_variant(mysql.BINARY(length), "mysql", "mariadb")


def _varbinary(length: int) -> sa.types.TypeEngine[bytes]:
    return sa.LargeBinary().with_variant(mysql.VARBINARY(length), "mysql", "mariadb")


def _blob() -> sa.types.TypeEngine[bytes]:
    return sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


def _text(length: int) -> sa.types.TypeEngine[str]:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")
