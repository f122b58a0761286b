"""The library's own contenders: a decorated handler, called with one message or with many."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Final

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from sqlalchemy import BigInteger, Column, Engine, Integer, MetaData, String, Table, create_engine, insert
from sqlalchemy.orm import Session

from idempotent import Consumer, Message, Registry
from idempotent.checkers import MemoryChecker, RedisChecker, SqlChecker, TransactionalSqlChecker
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.migrations import upgrade
from idempotent.observe import Counters, Observer, counters
from idempotent.observe.otel import OpenTelemetry
from idempotent.outcomes import Result
from tests.bench.contest import SUBJECT, Contender, Work, in_batches, one_by_one

CheckerFactory = Callable[[], AbstractIdempotentChecker]

BATCHES: Final = (1, 10, 100, 500)
THREADS: Final = (1, 4)
MEASURED: Final = "MemoryChecker, durations"

# The effect of a transactional handler: what a business would keep of a message.
effects = Table(
    "bench_effects",
    MetaData(),
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("message", String(64), nullable=False),
    Column("amount", Integer, nullable=False),
)


def engine_at(url: str, pool_size: int = 8) -> Engine:
    """An engine with the deduplication tables and the table of the effects."""
    engine = create_engine(url, pool_size=pool_size)
    upgrade(url)
    effects.metadata.create_all(engine)
    return engine


def does_nothing(_: Message) -> None:
    """What the message is about is not what is measured."""


def writes_one(message: Message, session: Session) -> None:
    """One business INSERT a message."""
    session.execute(insert(effects), {"message": message.id, "amount": 1})


def writes_all(messages: Sequence[Message], session: Session) -> None:
    """One business INSERT of many rows."""
    session.execute(insert(effects), [{"message": message.id, "amount": 1} for message in messages])


def contender(
    where: str,
    who: str,
    checker: CheckerFactory,
    *,
    handler: Callable[..., None] = does_nothing,
    batch: int = 1,
    threads: int = 1,
    after: Callable[[], object] = lambda: None,
    observers: Callable[[], Sequence[Observer]] = lambda: (counters,),
) -> Contender:
    """A checker with a handler; each has keys of its own."""

    @contextmanager
    def opened() -> Iterator[Work]:
        registry, made = Registry(observers()), checker()
        decorate = registry.consumer(
            SUBJECT, checker=made, group=secrets.token_hex(4), batch=handler is writes_all
        )
        consumer = decorate(handler)
        try:
            yield (
                one_by_one(partial(_one, consumer))
                if batch == 1
                else in_batches(partial(_many, consumer), batch)
            )
        finally:
            made.close()

    return Contender(where, who, opened, batch, threads, after=after)


def _one(consumer: Consumer, message: Message) -> None:
    raise_error(consumer.process(message))


def raise_error(result: Result) -> None:
    """Raise the error of a result that has one."""
    if result.error is not None:
        raise result.error


def _many(consumer: Consumer, messages: Sequence[Message]) -> None:
    for result in consumer.process_many(messages):
        raise_error(result)


def memory() -> list[Contender]:
    """MemoryChecker; also with the times of its stages, as with `--metrics-port`, and with OpenTelemetry."""
    traced = [
        contender(
            "Memory", f"MemoryChecker, {sdk}", MemoryChecker, batch=batch, observers=partial(_traced, is_on)
        )
        for sdk, is_on in (("OpenTelemetry without an SDK", False), ("OpenTelemetry", True))
        for batch in (1, 100)
    ]
    measured = contender("Memory", MEASURED, MemoryChecker, observers=_measuring)
    return [*_all("Memory", "MemoryChecker", MemoryChecker), measured, *traced]


def _measuring() -> Sequence[Observer]:
    measuring = Counters()
    measuring.durations  # noqa: B018 - they are measured from now on
    return (measuring,)


@cache
def _traced(has_sdk: bool) -> Sequence[Observer]:
    """The observers of a registry that is traced: all that an exporter would be given is made, and nothing is sent."""
    if not has_sdk:
        return counters, OpenTelemetry()
    tracers, meters = TracerProvider(), MeterProvider([InMemoryMetricReader()])
    tracers.add_span_processor(BatchSpanProcessor(_Nowhere()))
    return counters, OpenTelemetry(tracer_provider=tracers, meter_provider=meters)


class _Nowhere(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def redis(url: str) -> list[Contender]:
    """RedisChecker."""
    return _all("Redis", "RedisChecker", lambda: RedisChecker(url))


def sql(where: str, url: str) -> list[Contender]:
    """SqlChecker and TransactionalSqlChecker, with savepoints and with a batch handler too."""
    engine = engine_at(url)
    # The next one gets connections of its own.
    anew: dict[str, Any] = {"after": engine.dispose}
    made = _all(where, "SqlChecker", lambda: SqlChecker(engine), **anew)
    transactional: dict[str, Any] = {"handler": writes_one, **anew}
    made += _all(where, "TransactionalSqlChecker", lambda: TransactionalSqlChecker(engine), **transactional)
    savepoints = partial(TransactionalSqlChecker, engine, savepoints=True)
    for batch in (100, 200):
        made.append(
            contender(where, "TransactionalSqlChecker, savepoints", savepoints, batch=batch, **transactional)
        )
    optimistic = partial(TransactionalSqlChecker, engine)
    made.append(contender(where, "TransactionalSqlChecker", optimistic, batch=200, **transactional))
    for batch in (100, 200, 500):
        made.append(
            contender(
                where,
                "TransactionalSqlChecker, batch=True",
                optimistic,
                handler=writes_all,
                batch=batch,
                **anew,
            )
        )
    return made


def _all(where: str, who: str, checker: CheckerFactory, **options: Any) -> list[Contender]:
    return [
        contender(where, who, checker, batch=batch, threads=threads, **options)
        for threads in THREADS
        for batch in BATCHES
    ]
