"""Create the two tables of the run ledger."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def tables(table: str) -> sa.MetaData:
    """Define the tables that this revision creates."""
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
        sa.PrimaryKeyConstraint("key_hash", name=f"pk_{claims}"),
        sa.Index(f"ix_{claims}_run", "run"),
    )
    return metadata


def upgrade(op: Operations, table: str) -> None:
    """Create the missing tables and indexes: an earlier run may have been killed between any two statements."""
    context = op.get_context()
    inspector = None if context.as_sql else sa.inspect(op.get_bind())
    for name, definition in tables(table).tables.items():
        if inspector is not None and name in inspector.get_table_names():
            present = {index["name"] for index in inspector.get_indexes(name)}
            for index in definition.indexes:
                if index.name not in present:
                    op.execute(sa.schema.CreateIndex(index))
        else:
            context.impl.create_table(definition)


def downgrade(op: Operations, table: str) -> None:
    """Drop the tables."""
    for name in (f"{table}_run_claims", f"{table}_runs"):
        op.execute(sa.schema.DropTable(sa.Table(name, sa.MetaData()), if_exists=True))


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
