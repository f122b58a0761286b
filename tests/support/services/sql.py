"""What MariaDB, MySQL and PostgreSQL have in common: a database of one's own on a server."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.pool import NullPool


def ping(url: str) -> None:
    with _engine(url).connect():
        pass


@contextmanager
def own_database(server_url: str, worker: str) -> Iterator[str]:
    """Makes an empty database next to the one `server_url` names, and drops it at the end."""
    name = f"idempotent_{worker}_{secrets.token_hex(4)}"
    engine = _engine(server_url)
    with engine.connect() as connection:
        is_mysql = connection.dialect.name == "mysql"
        connection.execute(text(f"CREATE DATABASE {name}{' CHARACTER SET utf8mb4' if is_mysql else ''}"))
    try:
        yield make_url(server_url).set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            if is_mysql:
                _disconnect_all(connection, name)
            connection.execute(text(f"DROP DATABASE {name}{'' if is_mysql else ' WITH (FORCE)'}"))


def _disconnect_all(connection: Connection, database: str) -> None:
    """DROP DATABASE would wait for a transaction that a failed test left open."""
    found = text("SELECT id FROM information_schema.processlist WHERE db = :database")
    for number in connection.execute(found, {"database": database}).scalars().all():
        connection.execute(text(f"KILL {number:d}"))


def _engine(url: str) -> Engine:
    return create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
