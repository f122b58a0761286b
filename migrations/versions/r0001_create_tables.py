"""Create the tables of keys, failures and offsets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def tables(table: str) -> sa.MetaData:
    """Define the tables that this revision creates."""
    metadata = sa.MetaData()
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
    )
    _define(
        metadata,
        f"{table}_failures",
        sa.Column("key_hash", _binary(20), nullable=False),
        sa.Column("k", _text(255), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("last_error", _text(1000), nullable=False),
        sa.Column("update_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
    )
    _define(
        metadata,
        f"{table}_offsets",
        sa.Column("key_hash", _binary(20), nullable=False),
        sa.Column("k", _text(255), nullable=False),
        sa.Column("next_offset", sa.BigInteger(), nullable=False),
        sa.Column("owner", _binary(16), nullable=True),
        sa.Column("update_at", sa.BigInteger(), nullable=False),
        indexed=False,
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
            continue
        context.impl.create_table(definition)
        if name == table and context.dialect.name == "postgresql":
            quoted = context.dialect.identifier_preparer.quote(name)
            op.execute(sa.text(f"ALTER TABLE {quoted} SET (fillfactor = 70)"))


def downgrade(op: Operations, table: str) -> None:
    """Drop the tables."""
    for name in (f"{table}_offsets", f"{table}_failures", table):
        op.execute(sa.schema.DropTable(sa.Table(name, sa.MetaData()), if_exists=True))


def _define(metadata: sa.MetaData, name: str, *columns: sa.schema.SchemaItem, indexed: bool = True) -> None:
    sa.Table(
        name,
        metadata,
        *columns,
        sa.PrimaryKeyConstraint("key_hash", name=f"pk_{name}"),
        *([sa.Index(f"ix_{name}_expires_at", "expires_at")] if indexed else []),
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
        sqlite_with_rowid=False,
    )


def _binary(length: int) -> sa.types.TypeEngine[bytes]:
    return sa.LargeBinary().with_variant(mysql.BINARY(length), "mysql", "mariadb")


def _blob() -> sa.types.TypeEngine[bytes]:
    return sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


def _text(length: int) -> sa.types.TypeEngine[str]:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")
