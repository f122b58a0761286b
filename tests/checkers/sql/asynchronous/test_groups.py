"""Groups and positions over an AsyncEngine."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from idempotent.checkers import OffsetChecker
from idempotent.claims import ClaimRequest, Completion, Verdict
from idempotent.message import Position
from tests.checkers.sql.asynchronous.driving import SPACE, booking, key
from tests.checkers.sql.booking import keys


@pytest.mark.parametrize("takes", [AsyncSession, AsyncConnection])
def test_a_group_commits_once_and_a_savepoint_undoes_one_handler(store, takes):
    checker = store.transactional(store.async_engine(), savepoints=True)

    async def main():
        call = checker.awaiting.call
        decisions = await call(checker.protocol.claim_many, [ClaimRequest(key(n)) for n in range(3)])
        claims = [decision.claim for decision in decisions]
        for number, claim in enumerate(claims):
            argument = await call(checker.handler_argument, claim, takes)
            savepoint = checker.isolated(claim, takes)
            await call(savepoint.__enter__)
            await booking(store, number)(argument)
            await call(checker.flush, claim)
            if number == 1:
                await call(savepoint.__exit__, ValueError, ValueError("no such customer"), None)
                await call(checker.forget, claim)
            else:
                await call(savepoint.__exit__, None, None, None)
        done = [Completion(claim) for number, claim in enumerate(claims) if number != 1]
        assert await call(checker.protocol.complete_many, done) == [True, True]

    asyncio.run(main())
    assert store.booked() == {"0": 1, "2": 1}
    assert keys(checker) == {"0", "2"}


def test_an_offset_advances_in_the_transaction_of_the_effect(store):
    checker = OffsetChecker(store.async_engine(), table=store.table)
    store.opened.callback(checker.close)
    partition = SPACE.key("topic/0")

    def request(offset):
        position = Position("topic", 0, offset, offset)
        return ClaimRequest(key(offset), partition=partition, position=position)

    async def main():
        awaiting = checker.awaiting
        assert await awaiting.call(checker.begin, {partition: 5}) == {partition: 5}
        for offset in (5, 6):
            claim = (await awaiting.claim(request(offset))).claim
            await booking(store, offset)(await awaiting.call(checker.handler_argument, claim, AsyncSession))
            assert await awaiting.complete(claim)
        assert (await awaiting.claim(request(5))).verdict is Verdict.DUPLICATE
        assert await awaiting.call(checker.begin, {partition: 0}) == {partition: 7}

    asyncio.run(main())
    assert store.booked() == {"5": 1, "6": 1}


def test_the_start_of_a_redelivered_message_is_noted_before_it_runs(store):
    # A busy server rolls back what a closed connection has left only after a while.
    async def main():
        for deaths in range(3):
            checker = store.transactional(store.async_engine(), lock_timeout_s=60)
            asked = ClaimRequest(key(1), redelivered=True)
            decision = await checker.awaiting.claim(asked)
            assert (decision.deaths, decision.claim.deaths) == (deaths, deaths)
            decision.claim.transaction.on_end = None  # its process dies
            await checker.awaiting.call(checker.protocol.abandon, decision.claim)

    asyncio.run(main())
