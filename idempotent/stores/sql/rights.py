"""missing_rights: what the user of a database may not do with the library's tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from sqlalchemy import Integer, Table

from idempotent.errors import SchemaError, StoreBusyError, StoreError, StoreUnavailableError
from idempotent.stores.sql.connections import Connections
from idempotent.stores.sql.cursor import query
from idempotent.stores.sql.faults import Fault, fault_of
from idempotent.stores.sql.grants import RIGHTS, account_of, grant

# Tells whether the statement would be allowed, and does not do it. None needs another right than its own.
_TRIED: Final = {
    "SELECT": "EXPLAIN SELECT {column} FROM {table} WHERE 1 = 0",
    "INSERT": "EXPLAIN INSERT INTO {table} ({column}) VALUES (0)",
    "UPDATE": "EXPLAIN UPDATE {table} SET {column} = 0 WHERE 1 = 0",
    "DELETE": "EXPLAIN DELETE FROM {table} WHERE 1 = 0",
}


_HIDING: Final = (
    "SELECT c.relname, EXISTS (SELECT 1 FROM pg_policy AS p WHERE p.polrelid = c.oid) FROM pg_class AS c"
    " WHERE c.oid IN ({tables}) AND row_security_active(c.oid)"
)


def hidden_rows(connections: Connections, tables: Sequence[str]) -> list[tuple[str, bool]]:
    """Those of the tables of which row level security hides rows from this user, and whether a policy shows him some.

    Raises:
        StoreError: the database did not answer.
    """
    if connections.dialect.name != "postgresql":
        return []
    named = ", ".join(f"to_regclass('{connections.dialect.located(table)}')" for table in tables)
    return [(str(row[0]), bool(row[1])) for row in connections.run(query, _HIDING.format(tables=named))]


def missing_rights(connections: Connections, table: Table) -> list[str]:
    """Those of the rights that a consumer may need which the user of these connections does not have on a table.

    Raises:
        SchemaError: the table is not there.
        StoreError: the database did not answer.
    """
    if connections.dialect.name == "sqlite":  # it has no users
        return []
    return [right for right in RIGHTS if not _has_right(connections, table, right)]


def grant_to_user(connections: Connections, rights: Sequence[str], on: str) -> str:
    """The GRANT of these rights on something to the user of these connections.

    Raises:
        StoreError: the database did not answer.
    """
    return grant(rights, on, account_of(connections.dialect.name, partial(connections.run, query)))


def grant_on(connections: Connections, table: str) -> str:
    """The GRANT of all rights on a table to the user of these connections.

    Raises:
        StoreError: the database did not answer.
    """
    return grant_to_user(connections, RIGHTS, connections.dialect.located(table))


def _has_right(connections: Connections, table: Table, right: str) -> bool:
    quoted = connections.dialect.located(table.name)
    if connections.dialect.name == "postgresql":
        asked = f"SELECT has_table_privilege('{quoted}', '{right}')"
        return bool(connections.run(query, asked)[0][0])
    number = next(column.name for column in table.columns if isinstance(column.type, Integer))
    try:
        connections.run(query, _TRIED[right].format(table=quoted, column=number))
    except (StoreBusyError, StoreUnavailableError, SchemaError):
        raise
    except StoreError as error:
        cause = error.__cause__
        return cause is None or fault_of(cause, connections.engine) is not Fault.DENIED
    return True
