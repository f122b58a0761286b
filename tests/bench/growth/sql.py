"""MariaDB and PostgreSQL: both layouts, with enough memory for the keys and with too little."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import create_engine

from idempotent.checkers import SqlChecker
from tests.bench import servers
from tests.bench.growth.claiming import for_seconds, rate
from tests.bench.growth.results import Latency, Layout, Point
from tests.bench.growth.tables import TABLES, Tables
from tests.support.services import PrivateServer

OnStep = Callable[[str], object]
_MIB: Final = 2**20
_ROUNDS: Final = 3


@dataclass(frozen=True, slots=True)
class Database:
    """A server, and how to give it less memory than its table has.

    Attributes:
        name: for people.
        make: the server, with these words on its command line.
        small: the words.
        enough: the memory it has without them.
        little: the memory it has with them.
    """

    name: str
    make: Callable[..., PrivateServer]
    small: tuple[str, ...]
    enough: int
    little: int


DATABASES: Final = (
    Database("MariaDB", servers.mariadb, ("--innodb-buffer-pool-size=8M",), 128 * _MIB, 8 * _MIB),
    Database("PostgreSQL", servers.postgres, ("-c", "shared_buffers=4MB"), 128 * _MIB, 4 * _MIB),
)


def points(
    database: Database,
    server: PrivateServer,
    tables: Tables,
    sizes: Sequence[int],
    *,
    batches: Sequence[int],
    seconds: float,
    on_step: OnStep,
) -> Iterator[Point]:
    """Measure at each size, from the smallest to the largest."""
    for size in sorted(sizes):
        tables.fill(size, lambda stored: on_step(f"{database.name}: {stored:,} keys loaded"))
        sizes_of = {layout: tables.bytes_per_key(layout) for layout in TABLES}
        measured = _Measured(database, server, tables, sizes_of, batches, seconds, on_step)
        yield from measured.with_memory(database.enough)
        if min(sizes_of.values()) * size > database.little:
            options = server.options
            _restart(server, (*options, *database.small))
            yield from measured.with_memory(database.little)
            _restart(server, options)


@dataclass(frozen=True, slots=True)
class _Measured:
    database: Database
    server: PrivateServer
    tables: Tables
    bytes_per_key: dict[Layout, float]
    batches: Sequence[int]
    seconds: float
    on_step: OnStep

    def with_memory(self, memory: int) -> Iterator[Point]:
        """Both layouts in turn, so that what else the machine does is the same for them."""
        shown = f"{memory // _MIB}M"
        checkers = {
            layout: SqlChecker(create_engine(self.server.url), table=table)
            for layout, table in TABLES.items()
        }
        for batch in self.batches:
            times: dict[Layout, list[float]] = {layout: [] for layout in checkers}
            for number in range(_ROUNDS):
                for layout in checkers if number % 2 == 0 else reversed(checkers):
                    stored = f"{self.tables.stored:,} keys"
                    self.on_step(f"{self.database.name}, {stored}, {shown}: {layout}, batch {batch}")
                    times[layout] += for_seconds(checkers[layout], batch, self.seconds / _ROUNDS)
            self.tables.forget_fresh()
            for layout, found in times.items():
                yield Point(
                    self.database.name,
                    layout,
                    shown,
                    self.tables.stored,
                    batch,
                    rate(found, batch),
                    Latency.of(found),
                    self.bytes_per_key[layout],
                )
        for checker in checkers.values():
            checker.close()


def _restart(server: PrivateServer, options: tuple[str, ...]) -> None:
    server.stop()
    server.options = options
    server.start()
