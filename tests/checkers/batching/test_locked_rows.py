"""Another session locks the row of a key that is in progress: the other keys of the process do not wait for it."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from idempotent.claims import Completion, Failure, Lapsed
from idempotent.errors import StoreBusyError
from tests.checkers.batching.rounds import SPACE, Calls, held, request, until

NAMES = [f"k{number}" for number in range(20)]


@pytest.fixture
def store(sql_store):
    if sql_store.kind == "sqlite":
        pytest.skip("SQLite locks its file")
    return sql_store


@contextmanager
def locked(store, name, space=SPACE):
    """Hold the row lock of a key, as a person does who looks at it with SELECT FOR UPDATE."""
    with store.admin_engine.begin() as connection:
        row = sa.text(f"SELECT status FROM {store.table} WHERE key_hash = :hash FOR UPDATE")
        assert connection.execute(row, {"hash": space.key(name).hash}).all()
        yield


def claims_of(checker, names=NAMES):
    return {name: checker.lone.claim(request(name)).claim for name in names}


def test_other_threads_complete_while_one_key_is_locked(store):
    checker, calls = store.leased(), Calls()
    claims = claims_of(checker)
    with locked(store, "k0"):
        with held(checker) as first:
            calls.start("first", checker.lone.claim, request("first"))
            assert first.entered.wait(20)
            for name, claim in claims.items():
                calls.start(name, checker.lone.complete, claim)
            first.until_waiting(len(claims))
            first.go.set()
        for number in range(3):
            late = claims_of(checker, [f"later {number}"])
            calls.start(f"later {number}", checker.lone.complete, *late.values())
        others = {*NAMES, "later 0", "later 1", "later 2"} - {"k0"}
        until(lambda: others <= calls.answers.keys())
        assert all(calls.answers[name] is True for name in others)
    answer = calls.join()["k0"]
    assert answer is True or isinstance(answer, StoreBusyError)
    until(lambda: not checker.protocol.unrecorded)
    assert checker.lone.claim(request("k0")).verdict.value == "duplicate"


def test_other_tasks_complete_while_one_key_is_locked(store):
    checker = store.leased()

    async def run():
        claims = {name: (await checker.awaiting.claim(request(name))).claim for name in NAMES}
        with locked(store, "k0"):
            tasks = {name: asyncio.create_task(checker.awaiting.complete(c)) for name, c in claims.items()}
            others = [task for name, task in tasks.items() if name != "k0"]
            async with asyncio.timeout(30):
                assert all(await asyncio.gather(*others))
            for number in range(5):
                later = await checker.awaiting.claim(request(f"later {number}"))
                async with asyncio.timeout(30):
                    assert await checker.awaiting.complete(later.claim)
        await asyncio.wait([tasks["k0"]])

    asyncio.run(run())
    until(lambda: not checker.protocol.unrecorded)


@pytest.mark.slow
def test_the_leases_of_the_others_are_renewed_while_one_key_is_locked(store):
    checker = store.leased(lease_s=9.0)
    claims = claims_of(checker)
    lease = sa.text(f"SELECT key_hash, lease_until FROM {store.table}")

    def leases():
        with store.admin_engine.connect() as connection:
            return {bytes(row[0]): row[1] for row in connection.execute(lease)}

    before, kept = leases(), SPACE.key("k0").hash
    with locked(store, "k0"):
        until(lambda: all(until_us > before[key] for key, until_us in leases().items() if key != kept))
        assert leases()[kept] == before[kept]
    until(lambda: leases()[kept] > before[kept])
    assert all(checker.protocol.complete_many([Completion(claim) for claim in claims.values()]))


STEPS = {
    "complete": lambda protocol, claims: protocol.complete(claims[0]),
    "complete_many": lambda protocol, claims: protocol.complete_many([Completion(claim) for claim in claims]),
    "release": lambda protocol, claims: protocol.release(claims[0]),
    "fail": lambda protocol, claims: protocol.release(claims[0], Failure("no", 3)),
    "release_many": lambda protocol, claims: protocol.release_many(
        [(claim, Failure("no", 3)) for claim in claims]
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_no_step_waits_for_a_locked_key_without_limit(store, step):
    protocol = (checker := store.leased()).protocol
    claims = [*claims_of(checker, ["k0", "k1"]).values()]
    with locked(store, "k0"), pytest.raises(StoreBusyError):
        STEPS[step](protocol, claims)
    until(lambda: not protocol.unrecorded)
    protocol.release_many([(claim, None) for claim in claims])


@pytest.mark.slow
def test_a_lapsed_key_that_is_locked_is_in_progress(store):
    checker = store.leased(lease_s=600.0)
    checker.protocol.abandon(claims_of(checker, ["k0"])["k0"])
    store.age(700.0)
    with locked(store, "k0"):
        assert checker.lone.claim(request("k0")).verdict.value == "in_progress"
    taken = checker.lone.claim(request("k0", on_lapsed=Lapsed.TAKE_OVER))
    assert checker.protocol.complete(taken.claim)
