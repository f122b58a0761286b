"""The business table. It has no unique key: only the checker prevents that a flight is booked twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlalchemy import Column, Integer, MetaData, String, Table, func, select

from idempotent.demo.flights import Flight
from idempotent.testing.stage.databases import engine_at, use_write_ahead_log

WITH_CHECKER: Final = "demo_flights_with_checker"
WITHOUT_CHECKER: Final = "demo_flights_without_checker"


def bookings_table(name: str) -> Table:
    """Describe the table with one of its two names."""
    return Table(
        name,
        MetaData(),
        Column("id", Integer, primary_key=True),
        Column("flight", String(64), nullable=False),
        Column("distance", Integer, nullable=False),
        Column("arr_delay", Integer),
    )


def make_table(url: str, name: str, *, own_file: bool) -> None:
    """Create the table, empty.

    Args:
        url: the database.
        name: the table.
        own_file: the database is an SQLite file of the demo, so the demo may choose its journal.
    """
    table = bookings_table(name)
    with engine_at(url, name) as engine:
        if own_file:
            use_write_ahead_log(engine)
        table.drop(engine, checkfirst=True)
        table.create(engine)


def drop_table(url: str, name: str) -> None:
    """Remove the table."""
    with engine_at(url, name) as engine:
        bookings_table(name).drop(engine, checkfirst=True)


def read_bookings(url: str, name: str) -> Iterator[Flight]:
    """Yield every row."""
    table = bookings_table(name)
    columns = table.c.flight, table.c.distance, table.c.arr_delay
    with engine_at(url, name) as engine, engine.connect() as connection:
        for row in connection.execution_options(yield_per=10_000).execute(select(*columns)):
            yield Flight(*row)


def count_bookings(url: str, name: str) -> int:
    """Count the rows."""
    with engine_at(url, name) as engine, engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(bookings_table(name))) or 0
