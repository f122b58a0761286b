"""What the definitions of all tables share."""

from __future__ import annotations

from sqlalchemy import LargeBinary, MetaData, PrimaryKeyConstraint, String, Table
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import BLANK_SCHEMA, SchemaItem
from sqlalchemy.types import TypeEngine

from idempotent.errors import ConfigurationError

_OURS = "idempotent_consumer"


def our_table(
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


def binary(length: int) -> TypeEngine[bytes]:
    """Exactly so many bytes."""
    return LargeBinary().with_variant(mysql.BINARY(length), "mysql", "mariadb")


def exact_text(length: int) -> TypeEngine[str]:
    """At most so many characters, compared exactly."""
    exact = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
    return String(length).with_variant(exact, "mysql", "mariadb")


def long_binary() -> TypeEngine[bytes]:
    """As many bytes as the server takes."""
    return LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
