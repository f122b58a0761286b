"""The parts of a run, by name: each starts what it needs, measures, and leaves nothing behind."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final, TypeAlias

from idempotent.checkers import MemoryChecker, RedisChecker
from tests.bench import bare, brokers, checkers, memory, peers, servers
from tests.bench.contest import Contender, contest
from tests.bench.crowd import contenders as crowds
from tests.bench.crowd import working
from tests.bench.crowd.calls import rounds_of
from tests.bench.figures import Figure, Figures, What
from tests.bench.functions import contenders as functions
from tests.bench.outbox import peer, relaying, sending
from tests.bench.outbox.names import WAITING
from tests.bench.spark_dedup import spark_figures
from tests.support.services import PrivateServer

OnStep: TypeAlias = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Effort:
    """How long it may take.

    Attributes:
        rounds: of each contest that has a target and waits for a store; another has a third of them.
        seconds: each contender works in a round.
        messages: that are sent through each broker; a quarter of them where there is no target.
        rows: of Spark's frame.
    """

    rounds: int = 9
    seconds: float = 0.15
    messages: int = 15_000
    rows: int = 1_000_000

    @property
    def fewer_rounds(self) -> int:
        """Of a contest that only fills the tables of the report, or has nothing to wait for."""
        return max(self.rounds // 3, 1)


Part: TypeAlias = Callable[[Figures, Effort, OnStep], None]
"""Measures, and adds to the figures."""

_WORKER_MESSAGES: Final = 1_000_000
_ROUNDS_END_TO_END: Final = 3
_CROWD_MESSAGES: Final = 20_000
_ROUNDS_OF_SPARK: Final = 5
_IDLE_MESSAGES: Final = 200


def _contest(
    contenders: Sequence[Contender], effort: Effort, on_step: OnStep, *, thorough: bool = True
) -> list[Figure]:
    """Only those who are compared take turns: leased or transactional ones, with as many threads."""
    figures: list[Figure] = []
    for (_, threads), some in groupby(sorted(contenders, key=_kind), key=_kind):
        figures += contest(
            sorted(some, key=lambda one: one.batch),
            rounds=effort.rounds if thorough and threads == 1 else effort.fewer_rounds,
            seconds=effort.seconds,
            on_step=lambda one: on_step(
                f"{one.where}: {one.who}, batch {one.batch}, {one.threads} thread{'s' * (one.threads > 1)}"
            ),
        )
    return sorted(figures, key=lambda figure: (figure.threads, figure.batch))


def _kind(one: Contender) -> tuple[bool, int]:
    return "Transactional" in one.who or "Session" in one.who, one.threads


def _functions(figures: Figures, effort: Effort, on_step: OnStep) -> None:
    """Functions against consumers, and the HTTP middleware against the same statements by hand."""
    figures.all += _contest(functions.functions("Memory", MemoryChecker), effort, on_step)
    with closing(_started(servers.redis(), on_step)) as server:
        contenders = functions.functions("Redis", lambda: RedisChecker(server.url))
        figures.all += _contest(contenders, effort, on_step)
    for start in (servers.mariadb, servers.postgres):
        with closing(_started(start(), on_step)) as server:
            where = "PostgreSQL" if start is servers.postgres else "MariaDB"
            figures.all += _contest(functions.requests(where, server.url), effort, on_step)


def _memory(figures: Figures, effort: Effort, on_step: OnStep) -> None:
    figures.all += _contest([*bare.handler(), *checkers.memory()], effort, on_step, thorough=False)


def _sqlite(figures: Figures, effort: Effort, on_step: OnStep) -> None:
    with tempfile.TemporaryDirectory(prefix="idem-bench-") as folder:
        figures.all += _sql(
            "SQLite", f"sqlite:///{Path(folder) / 'bench.db'}", effort, on_step, thorough=False
        )


def _mariadb(figures: Figures, effort: Effort, on_step: OnStep) -> None:
    with closing(_started(servers.mariadb(), on_step)) as server:
        figures.all += _sql("MariaDB", server.url, effort, on_step)


def _postgresql(figures: Figures, effort: Effort, on_step: OnStep) -> None:
    with closing(_started(servers.postgres(), on_step)) as server:
        figures.all += _sql("PostgreSQL", server.url, effort, on_step, peers.postgres(server.url))


def _sql(
    where: str,
    url: str,
    effort: Effort,
    on_step: OnStep,
    others: Sequence[Contender] = (),
    *,
    thorough: bool = True,
) -> list[Figure]:
    contenders = [*bare.sql(where, url), *checkers.sql(where, url), *others]
    return _contest(contenders, effort, on_step, thorough=thorough)


def _redis(figures: Figures, effort: Effort, on_step: OnStep) -> None:
    with closing(_started(servers.redis(), on_step)) as server:
        contenders = [*bare.redis(server.url), *peers.redis(server.url), *checkers.redis(server.url)]
        figures.all += _contest(contenders, effort, on_step)


def _crowd(where: str, start: Callable[[], PrivateServer]) -> Part:
    """Async handlers and natural batching, on one store."""

    def measure(figures: Figures, effort: Effort, on_step: OnStep) -> None:
        with closing(_started(start(), on_step)) as server:
            figures.all += rounds_of(crowds.all_of(where, server.url), effort.fewer_rounds + 2, on_step)

    return measure


def _crowd_in_memory(figures: Figures, effort: Effort, on_step: OnStep) -> None:
    figures.all += rounds_of(crowds.memory(), effort.rounds, on_step)


def _crowd_over(broker: str) -> Part:
    """Async handlers of a Worker, over one broker."""

    def measure(figures: Figures, _: Effort, on_step: OnStep) -> None:
        absent = brokers.missing(broker)
        if absent:
            on_step(f"{broker} left out: {absent}")
            return
        on_step(f"start {broker}")
        with brokers.open_place(broker, _CROWD_MESSAGES) as place:
            figures.all += rounds_of(working.over(broker, place), _ROUNDS_END_TO_END, on_step)

    return measure


def _outbox(
    where: str,
    start: Callable[[], PrivateServer],
    *others: Callable[[str, brokers.Place], relaying.RelayContender],
) -> Part:
    """An outbox in one database, and relays to two brokers: ours and others."""

    def measure(figures: Figures, effort: Effort, on_step: OnStep) -> None:
        with closing(_started(start(), on_step)) as server:
            figures.all += contest(
                sending.senders(where, server.url),
                rounds=effort.rounds,
                seconds=effort.seconds,
                on_step=lambda one: on_step(f"{one.where}: {one.who}"),
            )
            for broker in ("Kafka", "RabbitMQ"):
                absent = brokers.missing(broker)
                if absent:
                    on_step(f"{broker} left out: {absent}")
                    continue
                on_step(f"start {broker}")
                with brokers.open_place(broker, effort.messages) as place:
                    to = where, broker, place, [one(server.url, place) for one in (relaying.ours, *others)]
                    figures.all += relaying.relayed(*to, _ROUNDS_END_TO_END, on_step)
                    figures.all += relaying.idle(*to, _IDLE_MESSAGES, on_step)
            on_step(f"{where}: reads")
            figures.all += sending.reads(where, server.url, WAITING, effort.rounds)

    return measure


def _through(broker: str, *, targets: bool = True) -> Part:
    def measure(figures: Figures, effort: Effort, on_step: OnStep) -> None:
        messages = effort.messages if targets else effort.messages // 4
        figures.all += brokers.measure(
            brokers=[broker], messages=messages, rounds=_ROUNDS_END_TO_END, on_step=on_step
        )

    return measure


def _spark(figures: Figures, effort: Effort, on_step: OnStep) -> None:
    identity, *others = spark_figures(effort.rows, _ROUNDS_OF_SPARK, tell=on_step)
    for one in (identity, *others):
        # The ratio was made round by round there.
        row_us = identity.seconds * 1e6 / identity.rows * one.ratio
        figures.all.append(Figure("Spark", one.step, What.FRESH, 1, 1, (row_us,), 0.0, 0.0, 0.0))


def _worker(figures: Figures, _: Effort, on_step: OnStep) -> None:
    samples = memory.measure(
        messages=_WORKER_MESSAGES,
        on_sample=lambda sample: on_step(f"worker: {sample.messages:,} of {_WORKER_MESSAGES:,} messages"),
    )
    flat = memory.flatness(samples)
    figures.worker_growth = (flat.late_bytes - flat.early_bytes) / flat.early_bytes * 100


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
    "functions": _functions,
    "rabbitmq": _through("RabbitMQ"),
    "activemq": _through("ActiveMQ", targets=False),
    "kafka": _through("Kafka"),
    "async-memory": _crowd_in_memory,
    "async-redis": _crowd("Redis", servers.redis),
    "async-mariadb": _crowd("MariaDB", servers.mariadb),
    "async-postgresql": _crowd("PostgreSQL", servers.postgres),
    "async-rabbitmq": _crowd_over("RabbitMQ"),
    "async-kafka": _crowd_over("Kafka"),
    "outbox-mariadb": _outbox("MariaDB", servers.mariadb),
    "outbox-postgresql": _outbox("PostgreSQL", servers.postgres, peer.relay),
    "spark": _spark,
    "worker": _worker,
}
