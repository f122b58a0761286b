"""Key and effect of an async handler commit together, and only the checker may end their transaction."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import nullcontext, suppress

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from idempotent import Outcome
from idempotent.claims import ClaimRequest
from idempotent.errors import ConfigurationError, TransactionEscapedError
from tests.checkers.sql.asynchronous.driving import booking, idle_of, key, process
from tests.checkers.sql.booking import MODES, keys

PROCESSED, DUPLICATE = Outcome.PROCESSED, Outcome.DUPLICATE


@pytest.mark.parametrize("options", MODES, ids=str)
@pytest.mark.parametrize("takes", [AsyncSession, AsyncConnection])
def test_key_and_effect_commit_together(store, options, takes):
    checker = store.transactional(store.async_engine(), **options)

    async def main():
        assert await process(checker, 1, booking(store, 1), takes) is PROCESSED
        assert await process(checker, 1, booking(store, 1), takes) is DUPLICATE
        assert idle_of(checker) == 1

    asyncio.run(main())
    assert store.booked() == {"1": 1}
    assert keys(checker) == {"1"}


def test_an_exception_rolls_both_back_and_counts(store):
    checker = store.transactional(store.async_engine())

    async def fail(session):
        await booking(store, 1)(session)
        raise ValueError("no such customer")

    async def main():
        with pytest.raises(ValueError, match="no such customer"):
            await process(checker, 1, fail)
        assert idle_of(checker) == 1
        assert store.booked() == {}
        assert await process(checker, 1, booking(store, 1)) is PROCESSED

    asyncio.run(main())
    assert store.booked() == {"1": 1}


def test_savepoints_of_a_handler_work(store):
    checker = store.transactional(store.async_engine())

    async def handle(session):
        await booking(store, 1)(session)
        with suppress(ValueError):
            async with session.begin_nested():
                await booking(store, 2)(session)
                raise ValueError

    asyncio.run(process(checker, 1, handle))
    assert store.booked() == {"1": 1}


@pytest.mark.parametrize("takes", [AsyncSession, AsyncConnection])
def test_what_a_handler_keeps_is_unusable_after_its_unit(store, takes):
    checker = store.transactional(store.async_engine())
    kept = []

    async def keep(argument):
        await booking(store, 1)(argument)
        kept.append(argument)

    async def use_kept(argument):
        for old in kept:
            with pytest.raises(InvalidRequestError, match="closed"):
                await booking(store, "stray")(old)
        await booking(store, 2)(argument)

    async def main():
        assert await process(checker, 1, keep, takes) is PROCESSED
        assert await process(checker, 2, use_kept, takes) is PROCESSED
        with pytest.raises(InvalidRequestError, match="closed"):
            await booking(store, "stray")(kept[0])

    asyncio.run(main())
    assert store.booked() == {"1": 1, "2": 1}


def test_ddl_is_part_of_the_transaction_or_refused(store):
    checker = store.transactional(store.async_engine())

    async def create(session):
        await booking(store, 1)(session)
        await session.execute(sa.text(f"CREATE TABLE {store.table}_scratch (a INTEGER)"))
        await session.execute(sa.text(f"DROP TABLE {store.table}_scratch"))

    async def main():
        if store.kind == "mysql":
            with pytest.raises(TransactionEscapedError):
                await process(checker, 1, create)
        else:
            assert await process(checker, 1, create) is PROCESSED

    asyncio.run(main())
    assert store.booked() == ({} if store.kind == "mysql" else {"1": 1})


@pytest.mark.parametrize("nested", [False, True])
def test_an_integrity_error_that_is_ignored_undoes_what_the_database_says(store, pairs, nested):
    checker = store.transactional(store.async_engine())

    async def collide(session):
        await booking(store, 1)(session)
        with suppress(IntegrityError):
            async with session.begin_nested() if nested else nullcontext():
                await session.execute(pairs.insert().values(id="a"))

    async def main():
        if store.kind == "mysql" or nested:
            assert await process(checker, 1, collide) is PROCESSED
        else:  # PostgreSQL refuses all statements after an error, and would answer COMMIT with ROLLBACK
            with pytest.raises(TransactionEscapedError):
                await process(checker, 1, collide)

    asyncio.run(main())
    assert store.booked() == ({"1": 1} if store.kind == "mysql" or nested else {})


def test_a_deadlock_is_worth_another_try_even_if_the_handler_ignores_it(store, pairs):
    checker = store.transactional(store.async_engine())
    met = asyncio.Event(), asyncio.Event()
    runs = []

    def cross(mine, first, second):
        async def handle(session):
            runs.append(mine)
            await session.execute(pairs.select().where(pairs.c.id == first).with_for_update())
            met[mine].set()
            await met[1 - mine].wait()
            with suppress(Exception):
                await session.execute(pairs.select().where(pairs.c.id == second).with_for_update())

        return handle

    async def main():
        return await asyncio.gather(
            process(checker, 1, cross(0, "a", "b")), process(checker, 2, cross(1, "b", "a"))
        )

    assert asyncio.run(main()) == [PROCESSED] * 2
    assert len(runs) == 3
    assert keys(checker) == {"1", "2"}


@pytest.mark.parametrize("state", ["waiting", "sleeping"])
def test_a_statement_that_still_runs_when_the_handler_returns_fails_it(store, state):
    checker = store.transactional(store.async_engine())
    sleep = "SELECT SLEEP(0.5)" if store.kind == "mysql" else "SELECT pg_sleep(0.5)"
    tasks = []

    async def forget_to_wait(session):
        await booking(store, 1)(session)
        tasks.append(asyncio.create_task(session.execute(sa.text(sleep))))
        if state == "waiting":  # for the other's answer
            tasks.append(asyncio.create_task(booking(store, "stray")(session)))
        await asyncio.sleep(0.1)

    async def main():
        with pytest.raises(TransactionEscapedError, match="await all tasks that use the session"):
            await asyncio.wait_for(process(checker, 1, forget_to_wait), 20)
        await asyncio.wait(tasks, timeout=20)
        assert all(task.exception() for task in tasks)
        assert idle_of(checker) == 0
        assert await process(checker, 2, booking(store, 2)) is PROCESSED

    asyncio.run(main())
    assert store.booked() == {"2": 1}
    assert keys(checker) == {"2"}


def test_a_claim_is_not_completed_on_another_event_loop(store):
    checker = store.transactional(store.async_engine())

    async def main():
        claim = (await checker.awaiting.claim(ClaimRequest(key(1)))).claim
        with pytest.raises(ConfigurationError, match="another event loop"):
            await asyncio.to_thread(checker.protocol.complete, claim)
        await checker.awaiting.call(checker.protocol.release, claim)

    asyncio.run(main())
    assert keys(checker) == set()


def test_a_coroutine_that_is_closed_awaits_nothing(store):
    checker = store.transactional(store.async_engine())

    async def main():
        claim = (await checker.awaiting.claim(ClaimRequest(key(1)))).claim
        session = await checker.awaiting.call(checker.handler_argument, claim, AsyncSession)
        await booking(store, 1)(session)
        checker.awaiting.later(checker.protocol.release, claim)
        assert "idempotent-sql" not in [thread.name for thread in threading.enumerate()], (
            "it asked the database"
        )
        assert idle_of(checker) == 0
        assert await process(checker, 1, booking(store, 1)) is PROCESSED

    asyncio.run(main())
    gc.collect()
    assert store.booked() == {"1": 1}
