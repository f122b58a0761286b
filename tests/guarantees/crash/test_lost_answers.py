"""Any answer of a store is lost, and the store is away for a moment: what did not run is neither counted nor held.

What ran is recorded. So while its process lives, each message runs once.
"""

import asyncio
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from idempotent import Message, Outcome, Registry, current_claim
from idempotent.errors import StoreUnavailableError
from idempotent.schema import failures_name
from idempotent.stores.sql.connections import Connections
from idempotent.stores.sql.cursor import execute
from idempotent.testing.proxy import Loss, Proxy
from tests.guarantees.crash.scene import behind
from tests.guarantees.orders import wait
from tests.support.stores import open_store

NETWORKED = ("mysql", "postgres", "redis")
OUTAGE_S = 0.1
# A lease does not end while a test runs: what is held is held for longer than the outage.
LEASE_S = 600.0
WITHIN_S = 30.0
LEFT = (Outcome.UNAVAILABLE, Outcome.IN_PROGRESS)


class Service:
    """A consumer whose store is behind a proxy, and what its handler did."""

    def __init__(self, store, proxy, *, is_async=False, transactional=False, **options):
        self.proxy = proxy
        self.store = store
        self.ran = Counter()
        self.during = lambda: None
        through = replace(store, url=behind(store, proxy.port), own_engine=None)
        lease = {"lease_s": options.pop("lease_s", LEASE_S)}
        if transactional:
            self.checker = through.transactional(through.async_engine() if is_async else None)
        else:
            self.checker = through.leased(**lease)
        effects = store.effects if transactional else None
        decorate = Registry().consumer("orders", checker=self.checker, **options)
        ran = self.ran

        if transactional and is_async:

            @decorate
            async def handle(message: Message, session: AsyncSession) -> None:
                self.during()
                await session.execute(sa.insert(effects).values(id=message.id))

        elif transactional:

            @decorate
            def handle(message: Message, session: Session) -> None:
                self.during()
                session.execute(sa.insert(effects).values(id=message.id))

        elif is_async:

            @decorate
            async def handle(message: Message) -> None:
                await asyncio.sleep(0)
                ran[message.id] += 1

        else:

            @decorate
            def handle(message: Message) -> None:
                ran[message.id] += 1

        self.consumer = handle
        self.transactional = transactional

    def effects(self):
        return self.store.booked() if self.transactional else dict(self.ran)


def one(service, messages):
    return [service.consumer.process(message) for message in messages]


def group(service, messages):
    return service.consumer.process_many(messages)


def crowd(service, messages):
    """As many at once that most share rounds."""
    with ThreadPoolExecutor(len(messages)) as threads:
        return list(threads.map(service.consumer.process, messages))


def tasks(service, messages):
    async def process():
        return await asyncio.gather(*map(service.consumer.process, messages))

    return asyncio.run(process())


def task_group(service, messages):
    return asyncio.run(service.consumer.process_many(messages))


WAYS = {one: 1, group: 3, crowd: 8, tasks: 3, task_group: 3}
ASYNC = (tasks, task_group)
SLOW = pytest.mark.slow


def parameters(values, *, quick):
    """Values of a parameter, all but the quick ones slow."""
    return [pytest.param(value, marks=() if value in quick else SLOW) for value in values]


LOSSES = pytest.mark.parametrize(
    "loss", parameters([Loss.ANSWER, Loss.QUESTION], quick=[Loss.ANSWER]), ids=lambda loss: loss.value
)


def deliver_until_final(service, way, messages):
    """As a worker does: what is UNAVAILABLE or IN_PROGRESS is looked at again. Returns the last outcome of each id."""
    last = {}
    until = time.monotonic() + WITHIN_S
    while messages:
        results = dict(zip(messages, way(service, messages), strict=True))
        last |= {message.id: result.outcome for message, result in results.items()}
        messages = [message for message in messages if results[message].outcome in LEFT]
        assert time.monotonic() < until, f"still {last}"
        time.sleep(0.05 if messages else 0)
    return last


def check(service, way, *, loss=Loss.ANSWER, redelivered=False):
    """Lose the first answer, the second, and so on, until a delivery has no more."""
    expected = {}
    for nth in range(100):
        warm = [Message("orders", id=f"warm-{nth}-{each}") for each in range(WAYS[way])]
        expected |= {message.id: 1 for message in warm}
        deliver_until_final(service, way, warm)  # connections are open
        messages = [
            Message("orders", id=f"{nth}-{each}", redelivered=redelivered) for each in range(WAYS[way])
        ]
        expected |= {message.id: 1 for message in messages}
        seen = service.proxy.lose(b"", loss, then_refuse=True, passing=nth)
        back = threading.Thread(
            target=lambda seen=seen: seen.wait(WITHIN_S) and (time.sleep(OUTAGE_S), service.proxy.recover())
        )
        back.start()
        last = deliver_until_final(service, way, messages)
        assert set(last.values()) <= {Outcome.PROCESSED, Outcome.DUPLICATE}, f"answer {nth} lost: {last}"
        assert service.effects() == expected, f"answer {nth} lost"
        if not seen.is_set():
            service.proxy.lose_nothing()
            seen.set()
            back.join()
            assert nth, "no answer was lost"
            return
        back.join()
    raise AssertionError("a delivery has a hundred answers")


@pytest.fixture
def proxied(request):
    """Returns a function that makes a service over a store of this kind."""
    opened = []

    def make(kind, **options):
        stores = open_store(kind, request, reuse=True)
        store = next(stores)
        url = urlsplit(store.url)
        proxy = Proxy(url.hostname, url.port)
        opened.extend([stores, proxy])
        return Service(store, proxy, **options)

    yield make
    for each in reversed(opened):
        each.close()


@pytest.mark.parametrize(
    "options",
    parameters([{}, {"on_expired_lease": "park"}, {"lease_s": None}], quick=[{}, {"lease_s": None}]),
    ids=["retry", "park", "claim_once"],
)
@LOSSES
@pytest.mark.parametrize("way", parameters(WAYS, quick=[one, group]), ids=lambda way: way.__name__)
@pytest.mark.parametrize("kind", NETWORKED)
def test_a_leased_message_runs_once_whichever_answer_is_lost(proxied, kind, way, loss, options):
    service = proxied(kind, is_async=way in ASYNC, max_attempts=1, **options)
    check(service, way, loss=loss)


@pytest.mark.parametrize("redelivered", parameters([False, True], quick=[True]), ids=["new", "redelivered"])
@LOSSES
@pytest.mark.parametrize(
    "way",
    parameters([way for way in WAYS if way is not crowd], quick=[one, group]),
    ids=lambda way: way.__name__,
)
@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_a_message_in_a_transaction_has_one_effect_whichever_answer_is_lost(
    proxied, kind, way, loss, redelivered
):
    service = proxied(kind, is_async=way in ASYNC, transactional=True, max_attempts=1)
    check(service, way, loss=loss, redelivered=redelivered)


@pytest.mark.parametrize("died", [False, True], ids=["", "died"])
@pytest.mark.parametrize("way", [one, pytest.param(tasks, marks=SLOW), group], ids=lambda way: way.__name__)
@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_outages_during_a_redelivered_message_use_up_no_attempts(proxied, kind, way, died, caplog):
    """Its start is noted before it runs, and cannot be forgotten meanwhile."""
    service = proxied(kind, is_async=way in ASYNC, transactional=True, max_attempts=2)
    messages = [Message("orders", id=str(each), redelivered=True) for each in range(WAYS[way])]
    if died:
        service.store.note_death(*[service.consumer.key_of(each.id) for each in messages])
    service.during = service.proxy.refuse
    for _ in range(4):
        last = {result.outcome for result in way(service, messages)}
        assert last <= {*LEFT}
        service.proxy.recover()
    service.during = lambda: None
    assert set(deliver_until_final(service, way, messages).values()) == {Outcome.PROCESSED}
    assert died or "process_died" not in caplog.text
    assert service.effects() == {message.id: 1 for message in messages}
    wait(lambda: not service.checker.protocol._owed.steps, "nothing is owed")
    with service.store.admin_engine.connect() as connection:
        failures = sa.table(failures_name(service.store.table))
        assert connection.scalar(sa.select(sa.func.count()).select_from(failures)) == 0


@pytest.mark.parametrize("outage", [False, True])
@pytest.mark.parametrize("way", [one, pytest.param(tasks, marks=SLOW), group], ids=lambda way: way.__name__)
@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_an_answer_that_is_lost_before_a_handler_runs_neither_adds_nor_forgets_a_death(
    proxied, kind, way, outage
):
    """Else a message that kills its process beside a database that comes and goes would do so for ever."""
    service = proxied(kind, is_async=way in ASYNC, transactional=True)
    deaths = []
    service.during = lambda: deaths.append(current_claim().deaths)
    for nth in range(100):
        deliver_until_final(service, way, [Message("orders", id=f"warm-{nth}")])
        messages = [Message("orders", id=f"{nth}-{each}", redelivered=True) for each in range(WAYS[way])]
        for _ in range(3):
            service.store.note_death(*[service.consumer.key_of(each.id) for each in messages])
        deaths.clear()
        seen = service.proxy.lose(b"", Loss.ANSWER, then_refuse=outage, passing=nth)
        way(service, messages)
        service.proxy.recover()
        if not seen.is_set() or (outage and deaths):
            assert nth, "no answer was lost"
            return
        deliver_until_final(service, way, messages)
        # A run that the server undid has ended: the next one begins anew.
        assert max(deaths) == 3, f"answer {nth} lost"
    raise AssertionError("a delivery has a hundred answers")


def test_an_answer_that_was_lost_stays_lost_when_the_next_try_meets_a_lock(request):
    """Else a claim that may have been made would count as refused."""
    stores = open_store("postgres", request, reuse=True)
    with closing(stores):
        store = next(stores)
        connections = Connections(store.engine(), store.table)
        store.opened.callback(connections.close)
        tries = []

        def work(driver):
            tries.append(driver)
            if len(tries) == 1:
                execute(driver, "SELECT pg_terminate_backend(pg_backend_pid())")
            execute(driver, f"LOCK TABLE {store.table} NOWAIT")

        with store.admin_engine.begin() as holder:
            holder.exec_driver_sql(f"LOCK TABLE {store.table}")
            with pytest.raises(StoreUnavailableError):
                connections.run_atomically(work)
        assert len(tries) == 3
