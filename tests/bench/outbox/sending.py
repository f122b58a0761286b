"""Transactional handlers that send none, one and ten messages, and the reads of a relay."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Message
from idempotent.checkers import TransactionalSqlChecker
from idempotent.outbox import Outbox, outbox_tables
from idempotent.outbox.entries import BUCKETS
from idempotent.schema import OutboxTables
from tests.bench.brokers.places import BODY
from tests.bench.checkers import contender, engine_at, writes_one
from tests.bench.contest import Contender
from tests.bench.figures import Figure, What
from tests.bench.outbox.names import BATCH, SENDS, read_of, sender, with_outbox
from tests.outbox.filling import fill

_READS: Final = 20


def senders(where: str, url: str) -> list[Contender]:
    """A handler for each number of messages; all of them write one row of their own."""
    engine = engine_at(url)
    _make_tables(engine, "bench_sent")
    outbox = Outbox(engine, table="bench_sent")  # a relay of another contest must not find them

    def handler(messages: int) -> Callable[..., None]:
        def handle(message: Message, session: Session) -> None:
            writes_one(message, session)
            for _ in range(messages):
                outbox.send(session, Message("invoices", BODY), order_key="customer-7")

        return handle

    checker = partial(TransactionalSqlChecker, engine)
    reconnecting: dict[str, Any] = {"after": engine.dispose}
    return [
        replace(
            contender(
                with_outbox(where),
                sender(messages),
                checker,
                handler=handler(messages),
                batch=1,
                **reconnecting,
            ),
            whats=(What.FRESH,),
        )
        for messages in SENDS
    ]


def reads(where: str, url: str, sizes: tuple[int, ...], rounds: int) -> Iterator[Figure]:
    """The first read of a relay that has all buckets, from outboxes of several sizes in turn."""
    with_rows = {size: f"bench_{size}" for size in sizes}
    engine = sa.create_engine(url)
    for size, table in with_rows.items():
        fill(engine, _make_tables(engine, table).waiting, size)
    engine.dispose()
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for number in range(rounds):
        order = list(with_rows)
        random.Random(number).shuffle(order)
        for size in order:
            times[size].append(_read_us(url, with_rows[size]))
    for size, each in times.items():
        median = round(statistics.median(each), 1)
        yield Figure(with_outbox(where), read_of(size), What.FRESH, 1, 1, tuple(each), median, max(each), 0.0)


def _make_tables(engine: sa.Engine, table: str) -> OutboxTables:
    metadata = sa.MetaData()
    made = outbox_tables(metadata, table)
    metadata.create_all(engine)
    return made


def _read_us(url: str, table: str) -> float:
    """The median of some reads, on a connection of their own."""
    engine = sa.create_engine(url)
    outbox = Outbox(engine, table=table)
    limits = dict.fromkeys(range(BUCKETS), -(-BATCH // BUCKETS))
    times = []
    try:
        for _ in range(_READS):
            began = time.perf_counter()
            found = outbox.store.read(limits, "")
            times.append((time.perf_counter() - began) * 1e6)
            if len(found) < BATCH:
                raise RuntimeError(f"a read found {len(found)} messages of {table}")
    finally:
        outbox.close()
        engine.dispose()
    return round(statistics.median(times[1:]), 1)
