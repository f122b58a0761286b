"""Create the tables of the outbox."""

from __future__ import annotations

import sqlalchemy as sa
from alembic.operations import Operations
from sqlalchemy.dialects import mysql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def tables(table: str) -> sa.MetaData:
    """Define the tables that this revision creates."""
    metadata = sa.MetaData()
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
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("destination", "slot", name=f"pk_{name}_leases"),
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
    for name in tables(table).tables:
        op.execute(sa.schema.DropTable(sa.Table(name, sa.MetaData()), if_exists=True))


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


def _define(metadata: sa.MetaData, name: str, *columns: sa.schema.SchemaItem, numbered: bool = False) -> None:
    sa.Table(
        name,
        metadata,
        *columns,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mariadb_engine="InnoDB",
        mariadb_charset="utf8mb4",
        sqlite_with_rowid=numbered,
        sqlite_autoincrement=numbered,
    )


def _binary(length: int) -> sa.types.TypeEngine[bytes]:
    return sa.LargeBinary().with_variant(mysql.BINARY(length), "mysql", "mariadb")


def _blob() -> sa.types.TypeEngine[bytes]:
    return sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


def _text(length: int) -> sa.types.TypeEngine[str]:
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")
