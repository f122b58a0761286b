"""Real threads, real processes and real kills on one ledger."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from idempotent.adapters.spark.ledger import OnConflict, RunState
from idempotent.adapters.spark.ledger.claims import ClaimState, Owner
from idempotent.adapters.spark.ledger.handler_claims import HandlerClaims
from idempotent.adapters.spark.ledger.run_claims import RowVerdict, RunClaims
from idempotent.adapters.spark.ledger.sql import SqlRunStore
from idempotent.errors import RunConflictError
from idempotent.schema import run_tables
from tests.adapters.spark.ledger.contract.base import keys
from tests.adapters.spark.ledger.counting import claims_of
from tests.adapters.spark.ledger.ledgers import ALL, Place, open_place

LEASE_S = 60.0
THREADS = 8


@pytest.fixture(params=ALL)
def place(request) -> Iterator[Place]:
    with contextmanager(open_place)(request.param, request) as place:
        yield place


def at_once(work, count=THREADS):
    """The results of threads that begin together."""
    together = threading.Barrier(count)

    def one(number):
        together.wait(150)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def test_threads_that_begin_a_run_settle_on_one_row(place):
    rows = at_once(lambda _: place.ledger().begin("orders", "r1", lease_s=LEASE_S, takeover=True))
    assert len({row.ref.token for row in rows}) == 1
    assert sorted(row.ref.epoch for row in rows) == list(range(1, THREADS + 1))


def test_of_threads_that_begin_without_a_takeover_one_has_the_run(place):
    def begin(_):
        try:
            return place.ledger().begin("orders", "r1", lease_s=LEASE_S).ref.epoch
        except RunConflictError:
            return None

    for expected in (1, 2):
        assert sorted(filter(None, at_once(begin))) == [expected]
        row = place.ledger().store.newest("orders", "r1")
        place.ledger().end_lease(row.ref)


def test_threads_that_begin_after_an_abort_settle_on_the_next_generation(place):
    ledger = place.ledger()
    ledger.abort(ledger.begin("orders", "r1", lease_s=LEASE_S).ref)
    rows = at_once(lambda _: place.ledger().begin("orders", "r1", lease_s=LEASE_S, takeover=True))
    assert {(row.ref.token, row.ref.generation) for row in rows} == {(rows[0].ref.token, 2)}


def test_of_prepare_and_abort_one_wins_and_all_threads_agree(place):
    for number in range(10):
        ref = place.ledger().begin("orders", f"r{number}", lease_s=LEASE_S).ref

        def end(thread, ref=ref):
            ledger = place.ledger()
            try:
                (ledger.prepare if thread % 2 else ledger.abort)(ref)
            except Exception as error:
                return type(error).__name__
            return RunState.PREPARED if thread % 2 else RunState.ABORTED

        ends = set(at_once(end, 4))
        state = place.ledger().row(ref.token).state
        assert ends == {state, "RunFencedError"}


def test_runs_that_race_for_keys_agree_on_each_owner(place):
    hashes = keys(2000)

    def claim(number):
        ledger = place.ledger()
        ref = ledger.begin("orders", f"r{number}", lease_s=LEASE_S).ref
        chosen = hashes if number % 2 else hashes[::-1]
        owners = [owner for at in range(0, 2000, 500) for owner in ledger.claim(ref, chosen[at : at + 500])]
        return [owner.token for owner in (owners if number % 2 else owners[::-1])]

    first, *others = at_once(claim)
    assert all(other == first for other in others)


def test_thieves_of_an_aborted_runs_keys_share_them(place):
    ledger, hashes = place.ledger(), keys(1000)
    dead = ledger.begin("orders", "dead", lease_s=LEASE_S).ref
    ledger.claim(dead, hashes)
    ledger.abort(dead)

    def decide(number):
        ledger = place.ledger()
        ref = ledger.begin("orders", f"r{number}", lease_s=LEASE_S).ref
        decided = []
        for at in range(0, 1000, 100):
            part = hashes[at : at + 100]
            decided += RunClaims(ledger, ref, on_conflict=OnConflict.DIVERT).decide(part)
        return {key for key, verdict in zip(hashes, decided, strict=True) if verdict is RowVerdict.NEW}

    count = Counter(key for mine in at_once(decide, 4) for key in mine)
    assert count == dict.fromkeys(hashes, 1)


def test_attempts_that_race_for_keys_hold_each_once(place):
    ledger, hashes = place.ledger(), keys(1000)
    ref = ledger.begin("orders", "r1", lease_s=LEASE_S).ref

    def acquire(number):
        held = HandlerClaims(place.ledger(), ref, LEASE_S, bytes([number]) * 16).acquire(hashes)
        return {key for key, answer in held.items() if answer.attempt == bytes([number]) * 16}

    count = Counter(key for mine in at_once(acquire) for key in mine)
    assert count == dict.fromkeys(hashes, 1)


def test_attempts_that_take_over_hold_each_once(place):
    ledger, hashes = place.ledger(), keys(500)
    ref = ledger.begin("orders", "r1", lease_s=LEASE_S).ref
    HandlerClaims(ledger, ref, LEASE_S, b"z" * 16).acquire(hashes)
    later = ledger.begin("orders", "r1", lease_s=LEASE_S, takeover=True).ref

    def acquire(number):
        held = HandlerClaims(place.ledger(), later, LEASE_S, bytes([number]) * 16).acquire(hashes)
        return {key for key, answer in held.items() if answer.attempt == bytes([number]) * 16}

    count = Counter(key for mine in at_once(acquire) for key in mine)
    assert count == dict.fromkeys(hashes, 1)


def demand_that_claims_end(place, ref, change):
    """Four tasks claim 4,000 keys, and `change(ledger)` in the midst of it: none is claimed once it has returned.

    It returns the reference by which to count them.
    """
    hashes, halfway = keys(4000), threading.Barrier(5)

    def work(number):
        mine = place.ledger()
        if number == 4:
            halfway.wait(150)
            return sum(claims_of(mine, change(mine)).values())
        for at in range(number * 1000, (number + 1) * 1000, 20):
            if at % 1000 == 200:
                halfway.wait(150)
            mine.claim(ref, hashes[at : at + 20])
        return None

    then = at_once(work, 5)[4]
    assert 800 <= then <= 4000
    assert sum(claims_of(place.ledger(), ref).values()) == then


def test_no_claim_is_made_once_prepare_has_returned(place):
    ref = place.ledger().begin("orders", "r1", lease_s=LEASE_S).ref

    def prepare(ledger):
        ledger.prepare(ref)
        return ref

    demand_that_claims_end(place, ref, prepare)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("mysql", ""),
        ("mysql", "?init_command=SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"),
        ("postgres", ""),
    ],
)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda ledger, ref: ledger.prepare(ref), id="prepare"),
        # It counts what is under way, too.
        pytest.param(lambda ledger, ref: ledger.prepare(ref, rows=5), id="prepare and count"),
        pytest.param(
            lambda ledger, ref: ledger.begin(ref.consumer, ref.run_id, lease_s=LEASE_S, takeover=True),
            id="takeover",
        ),
    ],
)
def test_a_change_waits_for_claims_under_way(kind, options, change, request):
    with contextmanager(open_place)(kind, request) as place, ThreadPoolExecutor() as pool:
        place.url += options
        ledger = place.ledger()
        ref, other = (ledger.begin("orders", name, lease_s=LEASE_S).ref for name in ("r1", "r2"))
        *first, last = sorted(keys(5))
        claims = run_tables(sa.MetaData(), place.name).claims
        engine = sa.create_engine(place.url)
        with engine.connect() as blocking:
            blocking.execute(claims.insert().values(key_hash=last, run=other.token, state=0))
            claiming = pool.submit(place.ledger().claim, ref, [*first, last])
            time.sleep(0.3)
            changing = pool.submit(change, place.ledger(), ref)
            time.sleep(0.5)
            assert (claiming.done(), changing.done()) == (False, False)
            blocking.rollback()
        engine.dispose()
        assert claiming.result(10) == [Owner(ref.token, 1)] * 5
        changing.result(10)
        assert ledger.claim(ref, keys(1)) == [None]


def test_no_claim_of_a_fenced_driver_is_made_once_a_takeover_has_returned(place):
    ref = place.ledger().begin("orders", "r1", lease_s=LEASE_S).ref
    demand_that_claims_end(
        place, ref, lambda ledger: ledger.begin("orders", "r1", lease_s=LEASE_S, takeover=True).ref
    )


class SlowCollector(SqlRunStore):
    """A store in which something happens after the claims to delete were found."""

    def __init__(self, config, meanwhile):
        super().__init__(config)
        self._meanwhile = meanwhile

    def _execute(self, statement, params):
        self._meanwhile()
        return super()._execute(statement, params)


@pytest.mark.parametrize("kind", ["sqlite", "mysql", "postgres"])
def test_an_effect_that_ends_while_its_claim_is_collected_stays_done(kind, request):
    with contextmanager(open_place)(kind, request) as place:
        ledger, (key,) = place.ledger(), keys(1)
        one = ledger.begin("orders", "one", lease_s=LEASE_S).ref
        handler = HandlerClaims(ledger, one, LEASE_S)
        handler.acquire([key])
        ledger.abort(one)  # by its driver, while the handler works on
        store = SlowCollector(place.config(), lambda: handler.finish([(key, b"done")]))
        place.opened.callback(store.close)
        assert not any(store.collect(100))
        two = ledger.begin("orders", "two", lease_s=LEASE_S).ref
        assert HandlerClaims(ledger, two, LEASE_S).acquire([key])[key].state is ClaimState.DONE


def test_renewals_get_through_while_tasks_claim(place):
    ledger = place.ledger()
    ref = ledger.begin("orders", "r1", lease_s=LEASE_S).ref
    stop = threading.Event()

    def work(number):
        mine = place.ledger()
        if number == 0:
            for _ in range(20):
                mine.renew(ref, LEASE_S)
            stop.set()
            return
        while not stop.is_set():
            mine.claim(ref, keys(100))

    at_once(work, 5)
