"""Tasks of an event loop in rounds, with threads and alone; cancelled at each stage."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from idempotent import Message, Outcome, Registry
from idempotent.checkers import MemoryChecker
from idempotent.claims import Verdict
from idempotent.errors import StoreUnavailableError
from tests.checkers.batching.rounds import SPACE, Calls, held, request, until
from tests.support.hooks import answering


async def is_true(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - another thread makes it true
            await asyncio.sleep(0.002)


def test_tasks_share_rounds(shared_store):
    checker = shared_store.leased()

    async def run():
        with held(checker) as first:
            tasks = [asyncio.ensure_future(checker.awaiting.claim(request("first")))]
            await is_true(first.entered.is_set)
            tasks += [asyncio.ensure_future(checker.awaiting.claim(request(f"k{n}"))) for n in range(20)]
            await is_true(lambda: checker.combiner.waiting == 20)
            first.go.set()
            decisions = await asyncio.gather(*tasks)
        assert first.sent == [1, 20]
        claims = [decision.claim for decision in decisions]
        assert all(await asyncio.gather(*(checker.awaiting.complete(claim, b"1") for claim in claims)))
        again = await asyncio.gather(*(checker.awaiting.claim(request(f"k{n}")) for n in range(20)))
        assert {(decision.verdict, decision.result) for decision in again} == {(Verdict.DUPLICATE, b"1")}

    asyncio.run(run())


def test_threads_and_tasks_share_rounds(shared_store):
    checker, calls = shared_store.leased(), Calls()
    claimed: list[str] = []  # threads lose some of what they add to a number

    def in_thread():
        for number in range(100):
            claim = checker.lone.claim(request(f"m{number}")).claim
            if claim is not None:
                claimed.append(f"m{number}")
                assert checker.lone.complete(claim)

    async def in_task():
        for number in range(100):
            claim = (await checker.awaiting.claim(request(f"m{number}"))).claim
            if claim is not None:
                claimed.append(f"m{number}")
                assert await checker.awaiting.complete(claim)

    async def run():
        await asyncio.gather(*(in_task() for _ in range(16)))

    for number in range(8):
        calls.start(f"thread {number}", in_thread)
    for number in range(2):
        calls.start(f"loop {number}", lambda: asyncio.run(run()))
    assert set(calls.join().values()) == {None}
    assert Counter(claimed) == {f"m{number}": 1 for number in range(100)}


def test_rounds_take_500_of_a_kind_in_the_order_of_their_calls_and_completions_first(shared_store):
    """Completions first: a duplicate of the same message that waits beside one is told so."""
    checker, sent = shared_store.leased(), []
    claims = [checker.lone.claim(request(f"done {number}")).claim for number in range(3)]

    def completes(completions):
        sent.append([one.claim.key.text for one in completions])
        return checker._complete_many(completions)

    def claims_many(requests):
        sent.append([one.key.text for one in requests])
        return checker._claim_many(requests)

    names = [f"k{number}" for number in range(1100)]

    async def run():
        with held(checker) as first:
            leader = asyncio.ensure_future(checker.awaiting.claim(request("first")))
            await is_true(first.entered.is_set)
            asked = [checker.awaiting.claim(request(name)) for name in ["done 0", *names]]
            tasks = asyncio.gather(*asked, *map(checker.awaiting.complete, claims))
            await is_true(lambda: checker.combiner.waiting == 1104)
            with answering(checker, _claim_many=claims_many, _complete_many=completes):
                first.go.set()
                answers = await tasks
            assert (await leader).claim
        assert answers[0].verdict is Verdict.DUPLICATE
        assert all(decision.claim for decision in answers[1:1101])
        assert answers[1101:] == [True] * 3

    asyncio.run(run())
    done = [SPACE.key(f"done {number}").text for number in range(3)]
    keys = [SPACE.key(name).text for name in ["done 0", *names]]
    assert sent == [done, keys[:500], keys[500:1000], keys[1000:]]


def test_a_task_alone_uses_the_hooks_for_one_key(shared_store):
    checker, calls = shared_store.leased(), Counter()
    consumer = Registry().consumer("orders", checker=checker)(nothing)
    hooks = ("_claim", "_claim_many", "_complete", "_complete_many")

    def counted(name):
        def call(*arguments):
            calls[name] += 1
            return getattr(checker, name)(*arguments)

        return call

    async def run():
        for number in range(3):
            result = await consumer.process(Message("orders", id=str(number)))
            assert result.outcome is Outcome.PROCESSED

    with answering(checker, **{name: counted(name) for name in hooks}):
        asyncio.run(run())
    assert calls == {"_claim": 3, "_complete": 3}


async def nothing(message: Message) -> None:
    pass


@pytest.mark.parametrize("stage", ["waits", "under way", "alone", "answered"])
def test_a_cancelled_task_leaves_no_claim(shared_store, stage):
    checker = shared_store.leased()

    async def run():
        with held(checker) as first:
            if stage == "under way":
                task = asyncio.ensure_future(checker.awaiting.claim(request("mine")))
                await is_true(first.entered.is_set)
            else:
                leader = asyncio.ensure_future(checker.awaiting.claim(request("first")))
                await is_true(first.entered.is_set)
                task = asyncio.ensure_future(checker.awaiting.claim(request("mine")))
                await is_true(lambda: checker.combiner.waiting == 1)
            if stage == "answered":
                first.go.set()
                blocking = threading.Event()  # the loop does not run while the answer arrives
                until(lambda: first.sent == [1, 1])
                blocking.wait(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            first.go.set()
            if stage != "under way":
                assert (await leader).claim
            await is_true(lambda: first.sent)
        await is_true(lambda: checker.lone.claim(request("mine")).claim)

    if stage == "alone":
        run = lambda: cancelled_alone(checker)  # noqa: E731
    asyncio.run(run())


async def cancelled_alone(checker):
    from idempotent.claims import KeyStatus, Lapsed

    parks = {"status": KeyStatus.IN_PROGRESS_PARK, "on_lapsed": Lapsed.PARK}
    with held(checker) as first:
        task = asyncio.ensure_future(checker.awaiting.claim(request("mine", **parks)))
        await is_true(first.entered.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        first.go.set()
        await is_true(lambda: first.sent)
    await is_true(lambda: checker.lone.claim(request("mine", **parks)).claim)


def test_a_completion_whose_task_is_cancelled_is_recorded(shared_store):
    checker = shared_store.leased()

    async def run():
        claim = checker.lone.claim(request("done")).claim
        with held(checker) as first:
            leader = asyncio.ensure_future(checker.awaiting.claim(request("first")))
            await is_true(first.entered.is_set)
            task = asyncio.ensure_future(checker.awaiting.complete(claim, b"1"))
            await is_true(lambda: checker.combiner.waiting == 1)
            task.cancel()
            await asyncio.sleep(0)
            assert not task.done()
            first.go.set()
            await leader
        assert await task is True
        assert task.cancelling() == 1
        assert checker.lone.claim(request("done")).verdict is Verdict.DUPLICATE

    asyncio.run(run())


def test_claims_of_a_loop_that_was_closed_are_released(shared_store):
    checker = shared_store.leased()
    loop = asyncio.new_event_loop()
    with held(checker) as first:
        task = loop.create_task(checker.awaiting.claim(request("mine")))
        loop.call_later(0.2, loop.stop)
        loop.run_forever()
        assert first.entered.wait(20)
        loop.close()
        first.go.set()
        until(lambda: checker.lone.claim(request("mine")).claim)
    assert not task.done()  # it was not collected before
    task.get_coro().close()


def test_an_error_of_the_store_reaches_every_task(shared_store):
    checker = shared_store.leased()

    def gone(_):
        raise StoreUnavailableError("gone")

    async def run():
        with answering(checker, _claim=gone, _claim_many=gone, _complete=gone):
            claims = (checker.awaiting.claim(request(f"k{n}")) for n in range(20))
            answers = await asyncio.gather(*claims, return_exceptions=True)
            assert {type(answer) for answer in answers} == {StoreUnavailableError}
        assert (await checker.awaiting.claim(request("k1"))).claim

    asyncio.run(run())


def test_other_steps_run_beside_the_loop_and_after_it(shared_store):
    checker = shared_store.leased()
    threads = []

    async def run():
        assert await checker.awaiting.call(max, 1, 2) == 2
        with pytest.raises(ZeroDivisionError):
            await checker.awaiting.call(divmod, 1, 0)
        await checker.awaiting.call(lambda: threads.append(threading.get_ident()))
        claim = (await checker.awaiting.claim(request("m"))).claim
        assert (await checker.awaiting.call(checker.protocol.release, claim)).owned

    asyncio.run(run())
    assert threads != [threading.get_ident()]
    claim = checker.lone.claim(request("m")).claim
    checker.awaiting.later(checker.protocol.release, claim)
    checker.awaiting.later(divmod, 1, 0)
    checker.close()
    assert checker.lone.claim(request("m")).claim


def test_memory_answers_in_the_loop():
    checker = MemoryChecker()

    async def run():
        claim = (await checker.awaiting.claim(request("m"))).claim
        assert await checker.awaiting.complete(claim)
        assert (await checker.awaiting.claim(request("m"))).verdict is Verdict.DUPLICATE
        assert await checker.awaiting.call(threading.get_ident) == threading.get_ident()

    asyncio.run(run())


def test_side_threads_end_with_the_checker(shared_store):
    checker = shared_store.leased()
    before = set(threading.enumerate())

    async def run():
        claims = await asyncio.gather(*(checker.awaiting.claim(request(f"k{n}")) for n in range(5)))
        await checker.awaiting.call(checker.protocol.release_many, [(d.claim, None) for d in claims])

    asyncio.run(run())
    names = ("idempotent-rounds", "idempotent-side")
    assert sorted(t.name for t in set(threading.enumerate()) - before if t.name in names) == sorted(names)
    checker.close()
    assert not [t.name for t in set(threading.enumerate()) - before if t.name in names]
