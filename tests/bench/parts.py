"""The parts of a run, by name: each starts what it needs, measures, and leaves nothing behind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from tests.bench import bare, checkers, peers, servers
from tests.bench.contest import Contender, contest
from tests.bench.figures import Figure
from tests.services import PrivateServer

OnStep: TypeAlias = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long it may take.

    Attributes:
        rounds: of each contest.
        seconds: each contender works in a round.
        messages: that are sent through each broker.
        rows: of Spark's frame.
        memory_messages: a worker processes while its memory is looked at.
    """

    rounds: int = 5
    seconds: float = 0.2
    messages: int = 20_000
    rows: int = 1_000_000
    memory_messages: int = 1_000_000


Part: TypeAlias = Callable[[Effort, OnStep], list[Figure]]


def _contest(contenders: Sequence[Contender], effort: Effort, on_step: OnStep) -> list[Figure]:
    # Those whose ratio matters, one at a time and in one batch size, have their turns next to each other.
    in_order = sorted(contenders, key=lambda one: (one.threads, one.batch, "Transactional" in one.who))

    def say(one: Contender) -> None:
        on_step(f"{one.where}: {one.who}, batch {one.batch}, {one.threads} thread{'s' * (one.threads > 1)}")

    return contest(in_order, rounds=effort.rounds, seconds=effort.seconds, on_step=say)


def _memory(effort: Effort, on_step: OnStep) -> list[Figure]:
    return _contest([*bare.handler(), *checkers.memory()], effort, on_step)


def _sqlite(effort: Effort, on_step: OnStep) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="idem-bench-") as folder:
        return _sql("SQLite", f"sqlite:///{Path(folder) / 'bench.db'}", effort, on_step)


def _mariadb(effort: Effort, on_step: OnStep) -> list[Figure]:
    with closing(_started(servers.mariadb(), on_step)) as server:
        return _sql("MariaDB", server.url, effort, on_step)


def _postgresql(effort: Effort, on_step: OnStep) -> list[Figure]:
    with closing(_started(servers.postgres(), on_step)) as server:
        return _sql("PostgreSQL", server.url, effort, on_step, peers.postgres(server.url))


def _sql(
    where: str, url: str, effort: Effort, on_step: OnStep, others: Sequence[Contender] = ()
) -> list[Figure]:
    return _contest([*bare.sql(where, url), *checkers.sql(where, url), *others], effort, on_step)


def _redis(effort: Effort, on_step: OnStep) -> list[Figure]:
    with closing(_started(servers.redis(), on_step)) as server:
        contenders = [*bare.redis(server.url), *peers.redis(server.url), *checkers.redis(server.url)]
        return _contest(contenders, effort, on_step)


def _started(server: PrivateServer, on_step: OnStep) -> PrivateServer:
    on_step(f"Starting {server.name}")
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server


PARTS: Final[dict[str, Part]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "mariadb": _mariadb,
    "postgresql": _postgresql,
    "redis": _redis,
}
