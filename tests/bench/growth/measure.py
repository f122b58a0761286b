"""All of it, one store after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from tests.bench.growth import redis, sql
from tests.bench.growth.collecting import collection
from tests.bench.growth.restarting import restarts
from tests.bench.growth.results import Growth
from tests.bench.growth.tables import Tables
from tests.bench.machine import machine

STORES: Final = ("MariaDB", "PostgreSQL", "Redis")
SMALLEST: Final = 10_000
BATCHES: Final = (1, 100)


def measure(
    *,
    largest: int = 1_000_000,
    smallest: int = SMALLEST,
    stores: Sequence[str] = STORES,
    seconds: float = 1.5,
    expired: int = 100_000,
    backlog: int = 5_000,
    restarted: int = 3,
    on_step: Callable[[str], object] = lambda _: None,
) -> Growth:
    """Let the stores grow by powers of ten, and measure at each.

    Args:
        largest: how many keys in the end.
        smallest: how many at first.
        stores: some of STORES.
        seconds: that each case takes.
        expired: keys that are deleted beside a consumer.
        backlog: messages that wait while workers are killed.
        restarted: how many workers.
        on_step: told what comes next.
    """
    growth = Growth(machine())
    sizes = [smallest]
    while sizes[-1] * 10 <= largest:
        sizes.append(sizes[-1] * 10)
    for database in sql.DATABASES:
        if database.name not in stores:
            continue
        with ExitStack() as stack:
            server = database.make()
            stack.callback(server.close)
            on_step(f"start {database.name}")
            server.start()
            tables = Tables(create_engine(server.url, poolclass=NullPool))
            growth.points += sql.points(
                database, server, tables, sizes, batches=BATCHES, seconds=seconds, on_step=on_step
            )
            growth.collections.append(
                collection(
                    database.name, server, tables, expired=expired, seconds=2 * seconds, on_step=on_step
                )
            )
            if not growth.restarts:
                growth.restarts += restarts(
                    database.name, server, backlog=backlog, times=restarted, on_step=on_step
                )
    if "Redis" in stores:
        growth.points += redis.points(sizes, batches=BATCHES, seconds=seconds, on_step=on_step)
    return growth
