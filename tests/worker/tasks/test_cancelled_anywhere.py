"""A cancellation anywhere, by asyncio or anyio, ends where it was asked for, and no effect happens twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from idempotent import AsyncConsumer, Message, Outcome, Registry, Result
from idempotent.keys import KeySpace
from tests.support.stores import ALL, ASYNC, Store, open_store

Results = list[Result]
Step = Awaitable[Results]
Arm = Callable[[Callable[[], object]], None]
LONGEST_S = 60.0


# Each way awaits a step, and is cancelled by what it gives to `arm`. None: the step was cancelled.


async def by_task(step: Step, arm: Arm) -> Results | None:
    task = asyncio.ensure_future(step)
    asked: list[bool] = []
    arm(lambda: asked.append(task.cancel()))
    await asyncio.wait([task])
    assert task.cancelled() is any(asked)
    return None if task.cancelled() else task.result()


async def by_timeout(step: Step, arm: Arm) -> Results | None:
    try:
        async with asyncio.timeout(None) as limit:
            arm(lambda: limit.reschedule(0))
            return await step
    except TimeoutError:
        return None


async def by_scope(step: Step, arm: Arm, *, shield: bool = False) -> Results | None:
    with anyio.CancelScope(shield=shield) as scope:
        arm(scope.cancel)
        return await step
    assert scope.cancelled_caught
    return None


async def by_shielded_scope(step: Step, arm: Arm) -> Results | None:
    return await by_scope(step, arm, shield=True)


async def by_deadline(step: Step, arm: Arm) -> Results | None:
    try:
        with anyio.fail_after(LONGEST_S) as scope:

            def now() -> None:
                scope.deadline = anyio.current_time()

            arm(now)
            return await step
    except TimeoutError:
        return None


async def by_outer_scope(step: Step, arm: Arm) -> Results | None:
    with anyio.CancelScope() as outer:
        arm(outer.cancel)
        return await by_deadline(step, lambda _: None)
    assert outer.cancelled_caught
    return None


async def by_both_scopes(step: Step, arm: Arm) -> Results | None:
    with anyio.CancelScope() as outer, anyio.CancelScope() as inner:
        arm(lambda: (inner.cancel(), outer.cancel()))
        return await step
    return None


async def by_group(step: Step, arm: Arm) -> Results | None:
    results: Results = []

    async def child() -> None:
        results.extend(await step)

    async with anyio.create_task_group() as group:
        arm(group.cancel_scope.cancel)
        group.start_soon(child)
    return results or None


async def by_timeout_around_a_scope(step: Step, arm: Arm) -> Results | None:
    try:
        async with asyncio.timeout(None) as limit:
            with anyio.CancelScope() as scope:
                arm(lambda: (scope.cancel(), limit.reschedule(0)))
                return await step
    except TimeoutError:
        return None
    return None


async def not_behind_a_shield(step: Step, arm: Arm) -> Results | None:
    results: Results = []
    with anyio.CancelScope() as outer:
        arm(outer.cancel)
        with anyio.CancelScope(shield=True):
            results = await step
        await anyio.lowlevel.checkpoint()
    assert results
    return results


WAYS = (
    by_task,
    by_timeout,
    by_scope,
    by_shielded_scope,
    by_deadline,
    by_outer_scope,
    by_both_scopes,
    by_group,
    by_timeout_around_a_scope,
    not_behind_a_shield,
)


class Turns:
    """Calls a function after so many turns of the event loop, unless it is stopped."""

    def __init__(self, turns: int, function: Callable[[], object]) -> None:
        self.left = turns
        self.gone = 0
        self._function = function
        self._turn()

    def _turn(self) -> None:
        if not self.left:
            self._function()
            return
        self.left -= 1
        self.gone += 1
        self._handle = asyncio.get_running_loop().call_soon(self._turn)

    def stop(self) -> None:
        if self.left:
            self._handle.cancel()
            self.left = 0


class Orders:
    """Orders that are booked, by a consumer over one checker: one at a time, or three together."""

    def __init__(self, store: Store, mode: str, how: str) -> None:
        self.booked: Counter[str] = Counter()
        self.store = store
        self.many = how == "group"
        self.transactional = mode == "transactional"
        if self.transactional:
            self.checker: Any = store.transactional(store.async_engine(), lock_timeout_s=20)
        else:
            self.checker = store.leased(lease_s=3600.0)
        make = Registry().consumer("orders", group="billing", checker=self.checker)
        self.consumer: AsyncConsumer = make(self._book_in if self.transactional else self._book)

    async def _book(self, message: Message) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self.booked[str(message.id)] += 1

    async def _book_in(self, message: Message, session: AsyncSession) -> None:
        await session.execute(self.store.effects.insert().values(id=message.id))
        await asyncio.sleep(0)

    def messages(self, name: object) -> list[Message]:
        return [Message("orders", id=f"{name}-{part}") for part in range(3 if self.many else 1)]

    async def deliver(self, name: object) -> Results:
        messages = self.messages(name)
        if self.many:
            return await self.consumer.process_many(messages)
        return [await self.consumer.process(*messages)]

    async def again(self, name: object) -> set[Outcome]:
        """Deliver what was interrupted, when its keys are free: some are freed after the task has ended."""
        while True:
            outcomes = {result.outcome for result in await self.deliver(name)}
            if Outcome.IN_PROGRESS not in outcomes:
                return outcomes
            await asyncio.sleep(0.01)

    async def turns(self, name: object) -> int:
        """How many turns of the event loop a delivery takes that nothing cancels."""
        turns = Turns(10**9, lambda: None)
        await self.deliver(name)
        turns.stop()
        return turns.gone

    def effects(self) -> dict[str, int]:
        return self.store.booked() if self.transactional else dict(self.booked)

    def attempts(self, name: object) -> set[int]:
        space = KeySpace("orders", "billing")
        known = [self.checker.admin().get(space.key(str(each.id))) for each in self.messages(name)]
        return {each.attempts or 0 for each in known if each is not None}


PLACES = [*[("leased", kind) for kind in ALL], *[("transactional", kind) for kind in ASYNC]]


@pytest.fixture(params=PLACES, ids="-".join)
def place(request: pytest.FixtureRequest) -> Iterator[tuple[Store, str]]:
    mode, kind = request.param
    with contextmanager(open_store)(kind, request, reuse=True) as store:
        yield store, mode


@pytest.mark.parametrize("rounds", [3, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["one", "group"])
def test_a_cancelled_message_is_processed_or_free_and_its_effect_happens_once(
    place: tuple[Store, str], how: str, rounds: int
) -> None:
    orders = Orders(*place, how)
    chance = random.Random(rounds)
    names = [f"{way.__name__}-{number}" for number in range(rounds) for way in WAYS]

    async def cancel_one(way: Callable[[Step, Arm], Awaitable[Results | None]], name: str, turn: int) -> None:
        turns: list[Turns] = []
        results = await way(orders.deliver(name), lambda cancel: turns.append(Turns(turn, cancel)))
        turns[0].stop()
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        await asyncio.sleep(0)  # nothing goes on
        if results is not None:
            assert {result.outcome for result in results} == {Outcome.PROCESSED}
            assert await orders.again(name) == {Outcome.DUPLICATE}

    async def main() -> None:
        for number in range(rounds):
            for way in WAYS:
                turn = chance.randrange(await orders.turns(f"calm-{way.__name__}-{number}") + 2)
                async with asyncio.timeout(LONGEST_S):
                    await asyncio.create_task(cancel_one(way, f"{way.__name__}-{number}", turn))
        for name in names:
            assert await orders.again(name) <= {Outcome.PROCESSED, Outcome.DUPLICATE}

    asyncio.run(main())
    expected = {
        str(each.id): 1
        for name in names
        for prefix in ("", "calm-")
        for each in orders.messages(prefix + name)
    }
    assert orders.effects() == expected
    assert {attempts for name in names for attempts in orders.attempts(name)} <= {0}
