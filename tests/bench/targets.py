"""The targets: what is measured against what, and how much is enough."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.bench.bare import GROUP, SAME, SAME_IN_SESSION, SAVEPOINTS, TOGETHER
from tests.bench.bare import WHO as BY_HAND
from tests.bench.brokers import BARE, REDIS, SECOND_HALF, TRANSACTIONAL
from tests.bench.brokers import BY_HAND as CLIENT_BY_HAND
from tests.bench.brokers.rounds import BATCH
from tests.bench.checkers import MEASURED
from tests.bench.crowd import targets as of_crowds
from tests.bench.figures import Figures, faster, slower
from tests.bench.functions.contenders import BY_HAND as REQUEST_BY_HAND
from tests.bench.functions.contenders import CONSUMER, FUNCTION, MIDDLEWARE
from tests.bench.goals import Goal, Measure, Target
from tests.bench.memory import MOST_GROWTH
from tests.bench.outbox import targets as of_outboxes
from tests.bench.peers import IDEMKIT, POWERTOOLS
from tests.bench.spark_dedup import IDENTITY, REDIS_BY_HAND

SPARK_REDIS: Final = "run.dedup, Redis, unique"
_SQL: Final = ("MariaDB", "PostgreSQL")
UNREACHED: Final = (
    "RedisChecker, batch 500, against a Lua batch by hand",
    "SqlChecker on MariaDB, one at a time, against INSERT and UPDATE by hand",
    "SqlChecker on PostgreSQL, one at a time, against INSERT and UPDATE by hand",
    "TransactionalSqlChecker on MariaDB, batch 200, against one at a time",
    "TransactionalSqlChecker on PostgreSQL, batch 200, against one at a time",
    "TransactionalSqlChecker, savepoints on MariaDB, batch 200, against one at a time",
    "TransactionalSqlChecker, savepoints on PostgreSQL, batch 200, against one at a time",
    "RedisChecker, 50 tasks, against idemkit's async at its best number of tasks",
    "SqlChecker on MariaDB, 50 tasks, median of a call against that of one",
    "SqlChecker on PostgreSQL, 50 tasks, median of a call against that of one",
    "64 threads in a Worker, SqlChecker on MariaDB, against combine=False",
    "Relay from PostgreSQL to Kafka, batch 500",
    "handler that sends 1 on PostgreSQL, against one that sends none",
    "@idempotent on Memory, against a consumer with results",
)
"""What fails in each run or, near its target, in some; docs/reference/figures.md says why. Others fail the run."""


def targets() -> Iterator[Target]:
    """Every row, in the order of the design."""
    yield Target(
        "decorated call with MemoryChecker, over the bare handler", Goal.AT_MOST, 10, "us", _overhead
    )
    yield Target(
        "durations of a call with MemoryChecker, over one that is not measured",
        Goal.AT_MOST,
        3,
        "us",
        _durations,
    )
    yield from _of_redis()
    for where in _SQL:
        yield from _of_sql(where)
    yield from _of_functions()
    for where in ("RabbitMQ", "Kafka"):
        yield Target(
            f"{where} end to end with a batch checker, against the bare client with manual ack",
            Goal.AT_LEAST,
            0.5,
            "x the rate",
            _best_batch(where, REDIS, TRANSACTIONAL),
            _best_batch(where, CLIENT_BY_HAND),
        )
    yield Target(
        f"{TRANSACTIONAL} over Kafka from the first message on, against the second half",
        Goal.AT_LEAST,
        0.9,
        "x the rate",
        lambda f: faster(
            f.find("Kafka", TRANSACTIONAL, batch=BATCH), f.find("Kafka", SECOND_HALF, batch=BATCH)
        ),
    )
    yield Target(
        "Spark dedup by key through Redis, against mapInArrow identity",
        Goal.AT_MOST,
        5,
        "x the time",
        lambda f: slower(f.find("Spark", SPARK_REDIS), f.find("Spark", IDENTITY)),
        lambda f: slower(f.find("Spark", REDIS_BY_HAND), f.find("Spark", IDENTITY)),
    )
    yield Target(
        "memory of a worker over 1,000,000 messages, growth from the second quarter to the last",
        Goal.AT_MOST,
        MOST_GROWTH * 100,
        "%",
        lambda f: f.worker_growth,
    )
    yield from of_crowds.targets()
    yield from of_outboxes.targets()


def _overhead(figures: Figures) -> float | None:
    ours, bare = figures.find("Memory", "MemoryChecker"), figures.find("Memory", BY_HAND)
    return ours.message_us - bare.message_us if ours and bare else None


def _durations(figures: Figures) -> float | None:
    measured, plain = figures.find("Memory", MEASURED), figures.find("Memory", "MemoryChecker")
    return measured.message_us - plain.message_us if measured and plain else None


def _of_functions() -> Iterator[Target]:
    for where, who, base, number, what in (
        ("Memory", FUNCTION, CONSUMER, 1.05, "a consumer with results"),
        ("Redis", FUNCTION, CONSUMER, 1.05, "a consumer with results"),
        *((where, MIDDLEWARE, REQUEST_BY_HAND, 1.15, "key, answer and effect by hand") for where in _SQL),
    ):
        yield Target(
            f"{who} on {where}, against {what}",
            Goal.AT_MOST,
            number,
            "x the time",
            lambda f, where=where, who=who, base=base: slower(f.find(where, who), f.find(where, base)),  # type: ignore[misc]
        )


def _of_redis() -> Iterator[Target]:
    yield Target(
        "RedisChecker, one at a time, against SET NX and SET by hand",
        Goal.AT_MOST,
        1.15,
        "x the time",
        lambda f: slower(f.find("Redis", "RedisChecker"), f.find("Redis", BY_HAND)),
    )
    for peer in (POWERTOOLS, IDEMKIT):
        yield Target(
            f"RedisChecker, batch 500, against {peer} one at a time",
            Goal.AT_LEAST,
            20,
            "x the rate",
            lambda f, peer=peer: faster(f.find("Redis", "RedisChecker", batch=500), f.find("Redis", peer)),  # type: ignore[misc]
        )
    yield Target(
        "RedisChecker, batch 500, against a Lua batch by hand",
        Goal.AT_LEAST,
        0.6,
        "x the rate",
        lambda f: faster(
            f.find("Redis", "RedisChecker", batch=500), f.find("Redis", f"{BY_HAND}, Lua", batch=500)
        ),
        lambda f: faster(f.find("Redis", SAME, batch=500), f.find("Redis", f"{BY_HAND}, Lua", batch=500)),
    )


def _of_sql(where: str) -> Iterator[Target]:
    yield Target(
        f"SqlChecker on {where}, one at a time, against INSERT and UPDATE by hand",
        Goal.AT_MOST,
        1.15,
        "x the time",
        lambda f: slower(f.find(where, "SqlChecker"), f.find(where, BY_HAND)),
        lambda f: slower(f.find(where, SAME), f.find(where, BY_HAND)),
    )
    yield _grouped(f"SqlChecker on {where}, batch 500", 20, where, "SqlChecker", "SqlChecker", 500, SAME)
    yield Target(
        f"{TRANSACTIONAL} on {where}, one at a time, against a Session by hand",
        Goal.AT_MOST,
        1.15,
        "x the time",
        lambda f: slower(f.find(where, TRANSACTIONAL), f.find(where, f"{BY_HAND}, Session")),
        lambda f: slower(f.find(where, SAME_IN_SESSION), f.find(where, f"{BY_HAND}, Session")),
    )
    for who, number, limit in (
        (TRANSACTIONAL, 4, GROUP),
        (f"{TRANSACTIONAL}, savepoints", 2, SAVEPOINTS),
        (f"{TRANSACTIONAL}, batch=True", 20, TOGETHER),
    ):
        yield _grouped(f"{who} on {where}, batch 200", number, where, who, TRANSACTIONAL, 200, limit)


def _grouped(
    what: str, number: float, where: str, who: str, base: str, batch: int, limit: str | None = None
) -> Target:
    return Target(
        f"{what}, against one at a time",
        Goal.AT_LEAST,
        number,
        "x the rate",
        lambda f: faster(f.find(where, who, batch=batch), f.find(where, base)),
        lambda f: faster(f.find(where, limit, batch=batch), f.find(where, base)) if limit else None,
    )


def _best_batch(where: str, *who: str) -> Measure:
    def measure(figures: Figures) -> float | None:
        base = figures.find(where, BARE)
        ratios = [
            faster(figure, base)
            for figure in figures.all
            if (figure.where == where and figure.who in who and figure.batch > 1)
        ]
        return max((ratio for ratio in ratios if ratio is not None), default=None)

    return measure
