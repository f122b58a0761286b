"""Add the attempts of a run: the one that was prepared, its manifest, and the frame of each claim."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_ADDED = {"added": True}


def tables(table: str) -> sa.MetaData:
    """Define the tables of the run ledger as this revision leaves them; `info` marks the columns that it adds."""
    metadata = sa.MetaData()
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
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("prepared_epoch", sa.Integer(), nullable=True, info=_ADDED),
        sa.Column("manifest", _blob(), nullable=True, info=_ADDED),
        sa.PrimaryKeyConstraint("token", name=f"pk_{runs}"),
        sa.Index(f"uq_{runs}_generation", "run_hash", "generation", unique=True),
        sa.Index(f"ix_{runs}_ended_at", "ended_at"),
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
        sa.Column("frame", sa.SmallInteger(), nullable=True, info=_ADDED),
        sa.PrimaryKeyConstraint("key_hash", name=f"pk_{claims}"),
        sa.Index(_new_index(claims), "run", "state", "epoch"),
    )
    return metadata


def upgrade(op: Operations, table: str) -> None:
    """Add what is missing: MySQL commits each statement, so a killed run leaves only some of it."""
    claims = f"{table}_run_claims"
    for name, definition in tables(table).tables.items():
        present = _names(op, name, "columns")
        for column in definition.columns:
            if column.info.get("added") and column.name not in present:
                op.add_column(name, sa.Column(column.name, column.type, nullable=True))
    present = _names(op, claims, "indexes")
    if _new_index(claims) not in present:
        op.create_index(_new_index(claims), claims, ["run", "state", "epoch"])
    if _old_index(claims) in present or op.get_context().as_sql:
        op.drop_index(_old_index(claims), claims)


def downgrade(op: Operations, table: str) -> None:
    """Drop the columns, of tables that are still there."""
    offline = op.get_context().as_sql
    claims = f"{table}_run_claims"
    if offline or _names(op, claims, "columns"):
        op.create_index(_old_index(claims), claims, ["run"])
        op.drop_index(_new_index(claims), claims)
    for name, definition in tables(table).tables.items():
        present = _names(op, name, "columns")
        for column in definition.columns:
            if column.info.get("added") and (offline or column.name in present):
                op.drop_column(name, column.name)


def _names(op: Operations, table: str, kind: str) -> set[str]:
    """The names of a table's columns or indexes; empty offline, and for a table that does not exist."""
    if op.get_context().as_sql:
        return set()
    inspector = sa.inspect(op.get_bind())
    if table not in inspector.get_table_names():
        return set()
    found = inspector.get_columns(table) if kind == "columns" else inspector.get_indexes(table)
    return {str(each["name"]) for each in found}


def _old_index(claims: str) -> str:
    return f"ix_{claims}_run"


def _new_index(claims: str) -> str:
    return f"ix_{claims}_mark"


def _define(metadata: sa.MetaData, name: str, *columns: sa.schema.SchemaItem) -> None:
    sa.Table(
        name,
        metadata,
        *columns,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
        sqlite_with_rowid=False,
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
