"""The GRANT statements, for an administrator to type, that give a database user the missing rights."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from sqlalchemy import Engine

from idempotent.stores.sql.cursor import Row

Ask: TypeAlias = Callable[[str], Sequence[Row]]
"""Runs a query without parameters in the session of the user."""

RIGHTS: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
"""What a consumer may need on a table."""
_TO_MIGRATE: Final = ("CREATE", "DROP", "ALTER", "INDEX", *RIGHTS)
# What the databases say. MySQL and MariaDB name the client's host, not the account's; and MySQL no database.
_DENIED_BY_MYSQL: Final = re.compile(
    r"(?P<right>\w+)(?:, *\w+)* command denied to user '(?P<user>.*?)'@'.*?' for "
    r"(?:column '.*?' in )?table (?:`(?P<database>.+?)`\.)?[`'](?P<table>.+?)[`']"
)
_NO_RIGHT_IN_MYSQLS_DATABASE: Final = re.compile(
    r"Access denied for user '(?P<user>.*?)'@'(?P<host>.*?)' to database '(?P<database>.*?)'"
)
_DENIED_BY_POSTGRESQL: Final = re.compile(
    r"(?P<why>permission denied for|must be owner of) (?P<kind>table|relation|sequence|schema) (?P<name>\w+)"
)
# A server's message has at most 512 bytes; what a procedure raises may be longer.
_LONGEST: Final = 1000
_HIDDEN_BY_POSTGRESQL: Final = re.compile(r'row-level security policy .*?for table "(?P<name>\w+)"')
# The schemas of the search_path that have the table and that the user may not use: to him they are not there.
_UNUSABLE_SCHEMA: Final = (
    "SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.relname = '{table}' AND NOT pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND n.nspname IN"
    " (SELECT replace(btrim(s, ' \"'), '$user', current_user::text)"
    " FROM unnest(string_to_array(current_setting('search_path'), ',')) AS s)"
)


def grant(rights: Iterable[str], on: str, account: str) -> str:
    """The statement that gives an account rights on something."""
    return f"GRANT {', '.join(rights)} ON {on} TO {account};"


def account_of(database: str, ask: Ask) -> str:
    """The account of a session, as a GRANT names it."""
    if database == "postgresql":
        return f'"{ask("SELECT current_user")[0][0]}"'
    user, _, host = str(ask("SELECT CURRENT_USER()")[0][0]).rpartition("@")
    return f"'{user}'@'{host}'"


def usage_of_schema(table: str, ask: Ask) -> str | None:
    """On PostgreSQL: the GRANT with which the user would see this table.

    None: no schema of the search path that the user may not use has such a table.
    """
    found = ask(_UNUSABLE_SCHEMA.format(table=table))
    return grant(["USAGE"], f'SCHEMA "{found[0][0]}"', account_of("postgresql", ask)) if found else None


def asking(connection: Any) -> Ask | None:
    """A function that sends a question over a driver's connection; None without a connection."""
    if connection is None:
        return None

    def ask(statement: str) -> Sequence[Row]:
        cursor = connection.cursor()
        try:
            cursor.execute(statement)
            rows: Sequence[Row] = cursor.fetchall()
            return rows
        finally:
            cursor.close()

    return ask


def showing_all(table: str) -> str:
    """The statement that ends the row level security of a table of PostgreSQL."""
    return f'ALTER TABLE "{table}" DISABLE ROW LEVEL SECURITY;'


def what_to_grant(text: str, engine: Engine, connection: Any = None) -> str:
    """What to type after the database has refused a statement because of a right, as a sentence.

    Args:
        text: the database's error.
        engine: of the user.
        connection: the driver's connection, which is asked for the name of the account.
    """
    text = text[:_LONGEST]
    if engine.dialect.name == "postgresql":
        statement = _for_postgresql(text, _account(engine, connection))
    else:
        statement = _for_mysql(text, engine, connection)
    if statement is None:
        return "GRANT it: docs/migrations.md lists what a user needs."
    return f"Type: {statement} (as a user who may grant it)"


def _for_postgresql(text: str, account: str) -> str | None:
    if hidden := _HIDDEN_BY_POSTGRESQL.search(text):
        return showing_all(hidden["name"])
    denied = _DENIED_BY_POSTGRESQL.search(text)
    if denied is None:
        return None
    name, kind = f'"{denied["name"]}"', denied["kind"]
    if denied["why"] == "must be owner of":
        return f"ALTER TABLE {name} OWNER TO {account};"
    if kind == "sequence":
        return grant(["USAGE"], f"SEQUENCE {name}", account)
    return (
        grant(["USAGE", "CREATE"], f"SCHEMA {name}", account)
        if kind == "schema"
        else grant(RIGHTS, name, account)
    )


def _for_mysql(text: str, engine: Engine, connection: Any) -> str | None:
    if shut := _NO_RIGHT_IN_MYSQLS_DATABASE.search(text):
        return grant(RIGHTS, f"`{shut['database']}`.*", f"'{shut['user']}'@'{shut['host']}'")
    denied = _DENIED_BY_MYSQL.search(text)
    if denied is None:
        return None
    database = f"`{denied['database'] or engine.url.database}`"
    account = _account(engine, connection, f"'{denied['user']}'@'%'")
    if denied["right"] in RIGHTS:
        return grant(RIGHTS, f"{database}.`{denied['table']}`", account)
    return grant(_TO_MIGRATE, f"{database}.*", account)


def _account(engine: Engine, connection: Any, default: str = "") -> str:
    """The account of a connection, or what is known of it without asking: its transaction may have failed."""
    ask = asking(connection)
    if ask is not None:
        try:
            return account_of(engine.dialect.name, ask)
        except (engine.dialect.loaded_dbapi.Error, OSError):
            pass
    user = engine.url.username or getattr(getattr(connection, "info", None), "user", "")
    return default or f'"{user}"'
