"""Users who may do what docs/migrations.md says a consumer needs, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

import sqlalchemy as sa
from redis import Redis

from idempotent.stores.redis.faults import COMMANDS

PASSWORD = "least"
SQL = "SELECT, INSERT, UPDATE, DELETE"


@contextmanager
def user_of_tables(engine: sa.Engine, name: str, tables: Sequence[str], may: str = SQL) -> Iterator[str]:
    """URL of a new user who may use these tables."""
    if engine.dialect.name == "sqlite":
        yield engine.url.render_as_string(hide_password=False)
        return
    is_mysql = engine.dialect.name == "mysql"
    user = f"'{name}'@'%'" if is_mysql else name
    password = "IDENTIFIED BY" if is_mysql else "LOGIN PASSWORD"
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE {'USER' if is_mysql else 'ROLE'} {user} {password} '{PASSWORD}'"))
        for table in tables:
            connection.execute(sa.text(f"GRANT {may} ON {table} TO {user}"))
    try:
        yield engine.url.set(username=name, password=PASSWORD).render_as_string(hide_password=False)
    finally:
        with engine.begin() as connection:
            if not is_mysql:
                connection.execute(sa.text(f"DROP OWNED BY {user}"))
            connection.execute(sa.text(f"DROP USER {user}"))


@contextmanager
def user_of_keys(url: str, name: str, prefix: str, may: str = COMMANDS) -> Iterator[str]:
    """URL of a new user who may use the keys with this prefix."""
    with Redis.from_url(url) as client:
        client.execute_command(
            "ACL", "SETUSER", name, "reset", "on", f">{PASSWORD}", f"~{prefix}*", "-@all", *may.split()
        )
        try:
            parts = urlsplit(url)
            yield parts._replace(netloc=f"{name}:{PASSWORD}@{parts.hostname}:{parts.port}").geturl()
        finally:
            client.execute_command("ACL", "DELUSER", name)
