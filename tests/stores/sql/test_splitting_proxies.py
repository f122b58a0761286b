"""A proxy sends each SELECT of its own to a replica that lags: whatever decides is read at the primary."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Message, Outcome, Registry
from idempotent.adapters.spark.ledger import StoreConfig, open_ledger
from idempotent.adapters.spark.ledger.run_claims import RowVerdict, RunClaims
from idempotent.admin import KeyFilter
from idempotent.checkers import OffsetChecker, SqlChecker, TransactionalSqlChecker
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.sql.statements import ROW
from idempotent.claims import ClaimRequest, Completion, KeyStatus, Lapsed, Verdict
from idempotent.keys import Key, KeySpace
from idempotent.outbox import Outbox, outbox_tables
from idempotent.outbox.admin import OutboxAdmin
from idempotent.schema import run_tables
from idempotent.stores.sql.engines import engine_from
from tests.checkers.contract.over_store import LeasedOver, TransactionalOver
from tests.outbox.picky import Picky, relay, until
from tests.stores.sql.splitting import split
from tests.support.ageing import age_tables
from tests.support.stores import ASYNC_URLS, open_store


@pytest.fixture(params=["mysql", "postgres"])
def store(request):
    yield from open_store(request.param, request)


@pytest.fixture
def all_tables(store):
    """Also those of an outbox, and of a ledger."""
    metadata = sa.MetaData()
    outbox_tables(metadata, store.table)
    run_tables(metadata, store.table)
    metadata.create_all(store.admin_engine)
    yield
    store.opened.close()
    metadata.drop_all(store.admin_engine)


def send(store, *bodies, **options):
    outbox = Outbox(store.admin_engine, table=store.table)
    with Session(store.admin_engine) as session, session.begin():
        for body in bodies:
            outbox.send(session, Message("invoices", body.encode()), **options)
    outbox.close()


def test_a_relay_publishes_each_message_once(store, all_tables):
    with split(store) as (proxy, replica):
        engine = engine_from(proxy.url)
        outbox = Outbox(engine, table=store.table)
        store.opened.callback(engine.dispose)
        store.opened.callback(outbox.close)
        adapter = Picky(refuses=["a 0"])

        def looks_often() -> None:
            end = proxy.statements + 50
            until(lambda: proxy.statements > end)

        with relay(outbox, adapter):
            bodies = [f"{key} {number}" for key in "abc" for number in range(3)]
            send(store, "d", order_key="d")
            until(lambda: (replica.refresh(), "d" in adapter.bodies)[1])
            for body in bodies:
                send(store, body, order_key=body[0])
            replica.refresh()  # what is published stays there
            until(lambda: {"b 2", "c 2"} <= set(adapter.bodies))
            looks_often()
            adapter.refuses.clear()
            until(lambda: (OutboxAdmin(outbox).retry(), "a 2" in adapter.bodies)[1])
            looks_often()
        assert sorted(adapter.bodies) == [*bodies, "d"]
    assert read_for_a_deed(proxy) == []


def read_for_a_deed(proxy) -> list[str]:
    """What a replica answered, but for the rows of keys that are stored already: what follows has its conditions."""
    return [statement for statement in proxy.diverted if f"SELECT {ROW}, " not in statement]


@contextmanager
def opened(
    store, kind: type[AbstractIdempotentChecker], *, is_async: bool = False
) -> Iterator[AbstractIdempotentChecker]:
    with split(store) as (proxy, _):
        url = ASYNC_URLS[store.kind](proxy.url) if is_async else proxy.url
        if is_async and store.kind == "postgres":
            url = url.set(drivername="postgresql+psycopg_async")
        checker = kind(url, table=store.table)
        store.opened.callback(checker.close)
        yield checker
    assert read_for_a_deed(proxy) == []


@pytest.mark.parametrize("kind", [SqlChecker, TransactionalSqlChecker])
def test_a_duplicate_is_known_and_a_person_sees_the_keys(store, kind):
    with opened(store, kind) as checker:
        registry = Registry()

        @registry.consumer("orders", checker=checker)
        def one(message: Message) -> None:
            if message.id == "bad":
                raise ValueError

        @registry.consumer("groups", checker=checker, batch=True)
        def group(messages: list[Message]) -> None:
            pass

        for outcome in (Outcome.PROCESSED, Outcome.DUPLICATE):
            assert one.process(Message("orders", id="m")).outcome is outcome
            results = group.process_many([Message("groups", id=f"{number}") for number in range(5)])
            assert {result.outcome for result in results} == {outcome}
        assert one.process(Message("orders", id="bad")).outcome is Outcome.FAILED
        records = list(checker.admin().list(KeyFilter(statuses=frozenset({KeyStatus.DONE}))))
        assert len(records) == 6
        assert sum(each.count for each in checker.admin().stats()) >= 6
        assert checker.admin().reopen(records[0])
        age_tables(store.admin_engine, store.table, 1e8)
        assert checker.garbage_collect() >= 5


@pytest.mark.parametrize("together", [False, True])
def test_a_lease_that_has_lapsed_on_the_replica_alone_is_not_taken_over(store, together):
    keys = [KeySpace("orders", "p").key(name) for name in ("1", "2")][: 1 + together]
    owner = store.leased()
    claims = [decision.claim for decision in owner.protocol.claim_many([ClaimRequest(key) for key in keys])]
    store.age(3600)
    with split(store) as (proxy, replica):
        replica.refresh()
        assert all(owner._renew_many(claims))
        checker = SqlChecker(proxy.url, table=store.table)
        store.opened.callback(checker.close)
        for on_lapsed in (Lapsed.TAKE_OVER, Lapsed.PARK):
            decisions = checker.protocol.claim_many([ClaimRequest(key, on_lapsed=on_lapsed) for key in keys])
            assert {decision.verdict for decision in decisions} == {Verdict.IN_PROGRESS}
        assert proxy.diverted
        assert owner.protocol.complete_many([Completion(claim) for claim in claims]) == [True] * len(keys)


def test_duplicates_of_tasks_are_known(store):
    with opened(store, TransactionalSqlChecker, is_async=True) as checker:

        @Registry().consumer("orders", checker=checker)
        async def handle(message: Message) -> None:
            pass

        async def twice():
            return [(await handle.process(Message("orders", id="m"))).outcome for _ in range(2)]

        assert asyncio.run(twice()) == [Outcome.PROCESSED, Outcome.DUPLICATE]


def test_a_partition_goes_on_where_it_ended(store):
    with opened(store, OffsetChecker) as checker:
        partition: Key = KeySpace("orders", "p").key("0")
        assert checker.begin({partition: 5}) == {partition: 5}
        with store.admin_engine.begin() as connection:
            connection.execute(sa.text(f"UPDATE {store.table}_offsets SET next_offset = 9"))
        assert checker.begin({partition: 5}) == {partition: 9}


def test_a_ledger_of_spark_knows_its_runs(store, all_tables):
    with split(store) as (proxy, _):
        url = proxy.url.render_as_string(hide_password=False)
        with open_ledger(StoreConfig(url, table=store.table)) as ledger:
            keys = [number.to_bytes(20, "big") for number in range(20)]
            for run, verdict in (("r1", RowVerdict.NEW), ("r2", RowVerdict.DUPLICATE)):
                ref = ledger.begin("orders", run, lease_s=60).ref
                assert set(RunClaims(ledger, ref).decide(keys)) == {verdict}
                ledger.prepare(ref)
                ledger.commit(ref)
    assert read_for_a_deed(proxy) == []


class BehindAProxy(LeasedOver):
    """The whole contract, while the replica never gets any key."""

    kind = "postgres"

    @pytest.fixture(autouse=True)
    def _split(self, _store) -> Iterator[None]:
        with split(self.store) as (self.proxy, _):
            yield
        assert read_for_a_deed(self.proxy) == []

    def make_checker(self, *, lease_s: float | None, retention_s: float) -> AbstractIdempotentChecker:
        checker = SqlChecker(self.proxy.url, table=self.store.table, lease_s=lease_s, retention_s=retention_s)
        self.store.opened.callback(checker.close)
        return checker


@pytest.mark.slow
class TestSqlChecker(BehindAProxy):
    """Leased."""


@pytest.mark.slow
class TestTransactionalSqlChecker(BehindAProxy, TransactionalOver):
    """Transactional."""

    def make_checker(self, *, lease_s: float | None, retention_s: float) -> AbstractIdempotentChecker:
        return self.store.transactional(
            engine_from(self.proxy.url), retention_s=retention_s, lock_timeout_s=0.2
        )
