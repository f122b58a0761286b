"""The business table. Nothing in it forbids to book a flight twice: only the checker stands in the way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, select, text

from idempotent.demo.databases import demo_engine
from idempotent.demo.flights import Flight

WITH_CHECKER: Final = "demo_flights_with_checker"
WITHOUT_CHECKER: Final = "demo_flights_without_checker"


def bookings_table(name: str) -> Table:
    """The table under one of its two names."""
    return Table(
        name,
        MetaData(),
        Column("id", Integer, primary_key=True),
        Column("flight", String(64), nullable=False),
        Column("distance", Integer, nullable=False),
        Column("arr_delay", Integer),
    )


def make_table(url: str, name: str, *, own_file: bool) -> None:
    """Make the table anew, empty.

    Args:
        url: the database.
        name: the table.
        own_file: an SQLite file of the demo's own, whose journal it may choose.
    """
    engine = demo_engine(url)
    table = bookings_table(name)
    if own_file:
        with engine.connect() as connection:
            connection.execute(text("PRAGMA journal_mode=WAL"))
    table.drop(engine, checkfirst=True)
    table.create(engine)
    engine.dispose()


def drop_table(url: str, name: str) -> None:
    """Remove the table."""
    engine = demo_engine(url)
    bookings_table(name).drop(engine, checkfirst=True)
    engine.dispose()


def read_bookings(url: str, name: str) -> Iterator[Flight]:
    """Every row."""
    engine = demo_engine(url)
    yield from _rows(engine, bookings_table(name))
    engine.dispose()


def _rows(engine: Engine, table: Table) -> Iterator[Flight]:
    columns = table.c.flight, table.c.distance, table.c.arr_delay
    with engine.connect().execution_options(yield_per=10_000) as connection:
        for row in connection.execute(select(*columns)):
            yield Flight(*row)
