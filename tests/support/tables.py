"""Tables on a server that one test uses after another: to make them takes longer than most tests."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import sqlalchemy as sa

from idempotent.schema import dedup_tables
from tests.support.privileges import user_of_tables


class Tables:
    """The tables of one store, and a table for effects.

    Args:
        engine: where they are; may create tables and users.
        name: of the table of keys; the other names begin with it.
    """

    def __init__(self, engine: sa.Engine, name: str) -> None:
        self.name = name
        self._engine = engine
        self._metadata = sa.MetaData()
        dedup_tables(self._metadata, name)
        effects_table(self._metadata, name)
        self._consumer = ExitStack()
        self._consumer_url = ""

    def consumer_url(self) -> str:
        """URL of a user who may use these tables and no others."""
        if not self._consumer_url:
            user = user_of_tables(self._engine, f"c_{secrets.token_hex(6)}", list(self._metadata.tables))
            self._consumer_url = self._consumer.enter_context(user)
        return self._consumer_url

    def create(self) -> None:
        self._metadata.create_all(self._engine, checkfirst=False)

    def empty(self) -> None:
        with self._engine.begin() as connection:
            for table in self._metadata.sorted_tables:
                connection.execute(table.delete())

    def drop(self) -> None:
        self._consumer.close()
        self._metadata.drop_all(self._engine, checkfirst=False)


class TablePool:
    """The tables of one database that no test uses at the moment.

    Args:
        url: of the database.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = sa.create_engine(url)
        self._idle: list[Tables] = []

    @contextmanager
    def fresh(self) -> Iterator[Tables]:
        """New tables, dropped afterwards."""
        tables = self._new()
        try:
            yield tables
        finally:
            tables.drop()

    @contextmanager
    def reused(self) -> Iterator[Tables]:
        """Empty tables that may have served another test."""
        tables = self._idle.pop() if self._idle else self._new()
        yield tables
        tables.empty()
        self._idle.append(tables)

    def close(self) -> None:
        for tables in self._idle:
            tables.drop()
        self.engine.dispose()

    def _new(self) -> Tables:
        tables = Tables(self.engine, new_name())
        tables.create()
        return tables


def new_name() -> str:
    """A name that no other test uses."""
    return f"dedup_{secrets.token_hex(6)}"


def effects_table(metadata: sa.MetaData, name: str) -> sa.Table:
    """A business table without any constraint, so that only the checker protects it."""
    return sa.Table(
        f"{name}_effects",
        metadata,
        sa.Column("id", sa.String(100), nullable=False),
        mysql_engine="InnoDB",
    )
