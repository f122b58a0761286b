"""The contract of many keys at once: in one call, in one transaction, and in tasks of an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias, TypeVar

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.claims import Completion, Failure, KeyStatus, Lapsed, Released, Verdict, new_owner
from idempotent.consumer import AsyncConsumer
from idempotent.message import Message
from idempotent.outcomes import Outcome
from idempotent.registry import Registry
from idempotent.testing.checker_contract.base import Capability, ContractBase, acquired, needs, without
from idempotent.values import changed

T = TypeVar("T")
_Handler: TypeAlias = Callable[[Message], Coroutine[Any, Any, object]]

_LARGE: Final = 2500
_TASKS: Final = 20
_LONGEST_S: Final = 60.0


class GroupsContract(ContractBase):
    """Batch hooks answer as loops over the single ones would."""

    def test_a_group_of_fresh_keys_is_acquired_and_completed(self) -> None:
        checker = self.checker()
        names = [f"m-{number}" for number in range(20)]
        claims = [acquired(d) for d in checker.protocol.claim_many([self.request(name) for name in names])]
        assert [claim.key for claim in claims] == [self.key(name) for name in names]
        assert checker.protocol.complete_many([Completion(claim) for claim in claims]) == [True] * 20
        again = checker.protocol.claim_many([self.request(name) for name in reversed(names)])
        assert {decision.verdict for decision in again} == {Verdict.DUPLICATE}

    def test_the_keys_of_a_group_may_share_an_owner(self) -> None:
        checker = self.checker()
        owner = new_owner()
        decisions = checker.protocol.claim_many([self.request(f"m-{n}", owner=owner) for n in range(5)])
        assert checker.protocol.complete_many([Completion(acquired(d)) for d in decisions]) == [True] * 5

    def test_a_released_group_is_free_again(self) -> None:
        checker = self.checker()
        requests = [self.request(f"m-{number}") for number in range(5)]
        claims = [acquired(decision) for decision in checker.protocol.claim_many(requests)]
        assert (
            checker.protocol.release_many([(claim, None) for claim in claims]) == [Released(owned=True)] * 5
        )
        again = checker.protocol.claim_many([self.request(f"m-{number}") for number in range(5)])
        checker.protocol.release_many([(acquired(decision), None) for decision in again])

    def test_verdicts_line_up_with_a_mix_of_fresh_done_and_dead_keys(self) -> None:
        checker = self.checker()
        self.finish(checker, "done", b'"result"')
        checker.protocol.release(self.acquire(checker, "dead"), Failure("gone", 1))
        names = ["fresh-1", "done", "fresh-2", "dead", "fresh-3"]
        decisions = checker.protocol.claim_many([self.request(name) for name in names])
        assert [decision.verdict for decision in decisions] == [
            Verdict.ACQUIRED,
            Verdict.DUPLICATE,
            Verdict.ACQUIRED,
            Verdict.DEAD,
            Verdict.ACQUIRED,
        ]
        assert decisions[1].result == b'"result"'
        assert decisions[3].reason == "gone"
        claims = [acquired(decisions[index]) for index in (0, 2, 4)]
        assert [claim.key for claim in claims] == [self.key(names[index]) for index in (0, 2, 4)]
        assert all(checker.protocol.complete_many([Completion(claim) for claim in claims]))

    @needs(Capability.RECORDED_CLAIMS)
    def test_a_group_that_asks_again_has_the_fences_that_are_stored(self) -> None:
        """Its answer may have been lost; and a fence that nobody stored protects nothing."""
        checker = self.checker()
        owner = new_owner()
        requests = [self.request(f"m-{number}", owner=owner) for number in range(5)]
        first = [acquired(decision) for decision in checker.protocol.claim_many(requests)]
        again = checker.protocol.claim_many([*requests, self.request("m-5", owner=owner)])
        assert not any(decision.lapsed for decision in again)
        claims = [acquired(decision) for decision in again]
        assert [claim.fence for claim in claims[:5]] == [claim.fence for claim in first]
        assert claims[5].fence > max(claim.fence for claim in first)
        assert checker.protocol.complete_many([Completion(claim) for claim in claims]) == [True] * 6

    @needs(Capability.RECORDED_CLAIMS)
    def test_a_key_held_elsewhere_does_not_hold_up_the_others(self) -> None:
        checker = self.checker()
        held = self.acquire(checker, "held")
        decisions = checker.protocol.claim_many([self.request(name) for name in ("a", "held", "b")])
        assert [decision.verdict for decision in decisions] == [
            Verdict.ACQUIRED,
            Verdict.IN_PROGRESS,
            Verdict.ACQUIRED,
        ]
        assert decisions[1].retry_after_s > 0
        assert checker.lone.complete(held)

    @needs(Capability.LEASES)
    def test_lapsed_keys_of_a_group_are_left_or_taken_over_as_asked(self) -> None:
        checker = self.checker(lease_s=self.brief_lease_s)
        names = ["first", "second", "left", "parked"]
        claims = [
            self.acquire(checker, name, status=status)
            for name, status in zip(
                names,
                [
                    KeyStatus.IN_PROGRESS,
                    KeyStatus.IN_PROGRESS,
                    KeyStatus.IN_PROGRESS,
                    KeyStatus.IN_PROGRESS_PARK,
                ],
                strict=True,
            )
        ]
        self.lapse(checker, *claims)
        decisions = checker.protocol.claim_many(
            [
                self.request("fresh"),
                self.request("first"),
                self.request("left", on_lapsed=Lapsed.LEAVE),
                self.request("second"),
                self.request("parked", on_lapsed=Lapsed.PARK),
            ]
        )
        assert [(d.verdict, d.deaths) for d in decisions] == [
            (Verdict.ACQUIRED, 0),
            (Verdict.ACQUIRED, 1),
            (Verdict.IN_PROGRESS, 1),
            (Verdict.ACQUIRED, 1),
            (Verdict.DEAD, 0),
        ]
        mine = [acquired(decisions[index]) for index in (0, 1, 3)]
        assert checker.protocol.complete_many([Completion(claim) for claim in [*mine, *claims[:2]]]) == [
            True,
            True,
            True,
            False,
            False,
        ]

    @needs(Capability.RECORDED_CLAIMS)
    def test_keys_of_one_group_keep_the_status_they_were_claimed_with(self) -> None:
        checker = self.checker()
        statuses = [KeyStatus.IN_PROGRESS, KeyStatus.IN_PROGRESS_PARK, KeyStatus.IN_PROGRESS]
        requests = [self.request(f"m-{number}", status=status) for number, status in enumerate(statuses)]
        claims = [acquired(decision) for decision in checker.protocol.claim_many(requests)]
        assert all(checker.protocol.complete_many([Completion(claim) for claim in claims]))

    @needs(Capability.RECORDED_CLAIMS)
    def test_completions_line_up_with_a_mix_of_mine_and_not_mine(self) -> None:
        checker = self.checker()
        for result in (None, b"1"):
            owner = new_owner()
            names = [f"{name}, {result!r}" for name in ("mine-1", "not-mine", "mine-2", "released", "mine-3")]
            claims = [
                acquired(d)
                for d in checker.protocol.claim_many([self.request(n, owner=owner) for n in names])
            ]
            checker.protocol.release(claims[3])
            claims[1] = changed(claims[1], owner=new_owner())
            never = changed(claims[0], key=self.key("never claimed"))
            answers = checker.protocol.complete_many(
                [Completion(claim, result) for claim in [*claims, never]]
            )
            assert answers == [True, False, True, False, True, False]
            assert [self.ask(checker, name).verdict for name in names] == [
                Verdict.DUPLICATE,
                Verdict.IN_PROGRESS,
                Verdict.DUPLICATE,
                Verdict.ACQUIRED,
                Verdict.DUPLICATE,
            ]

    @needs(Capability.RECORDED_CLAIMS)
    def test_releases_line_up_with_a_mix_of_mine_and_not_mine(self) -> None:
        checker = self.checker()
        owner = new_owner()
        names = ["mine", "failed", "killed", "not-mine", "done", "released"]
        claims = [
            acquired(d) for d in checker.protocol.claim_many([self.request(n, owner=owner) for n in names])
        ]
        claims[3] = changed(claims[3], owner=new_owner())
        checker.lone.complete(claims[4])
        checker.protocol.release(claims[5])
        failures = [None, Failure("no", 100), Failure("no", 1), None, None, None]
        answers = checker.protocol.release_many(list(zip(claims, failures, strict=True)))
        assert answers == [
            Released(owned=True),
            Released(owned=True, attempts=1),
            Released(owned=True, attempts=1, dead=True),
            Released(owned=False),
            Released(owned=False),
            Released(owned=False),
        ]
        assert [self.ask(checker, name).verdict for name in names] == [
            Verdict.ACQUIRED,
            Verdict.ACQUIRED,
            Verdict.DEAD,
            Verdict.IN_PROGRESS,
            Verdict.DUPLICATE,
            Verdict.ACQUIRED,
        ]

    @needs(Capability.RECORDED_CLAIMS)
    def test_claims_with_owners_of_their_own_complete_together(self) -> None:
        checker = self.checker()
        names = [f"m-{number}" for number in range(12)]
        claims = [acquired(d) for d in checker.protocol.claim_many([self.request(name) for name in names])]
        strangers = [changed(claim, owner=new_owner()) for claim in claims[:3]]
        completions = [Completion(claim, str(n).encode()) for n, claim in enumerate(claims[1:], 1)]
        mixed = [*completions[:5], *map(Completion, strangers), *completions[5:]]
        assert checker.protocol.complete_many(mixed) == [True] * 5 + [False] * 3 + [True] * 6
        again = [self.ask(checker, name) for name in names]
        assert again[0].verdict is Verdict.IN_PROGRESS
        assert [decision.result for decision in again[1:]] == [str(n).encode() for n in range(1, 12)]

    @needs(Capability.LEASES)
    def test_a_stale_and_a_live_claim_of_one_key_are_told_apart(self) -> None:
        """In one call, with those of other keys, in either order: the stale claim must not complete or free the key."""
        checker = self.checker(lease_s=self.steady_lease_s)
        for live_first in (False, True):
            names = [f"{name}, {live_first}" for name in ("done", "freed", "other")]
            stale = [self.acquire(checker, name) for name in names[:2]]
            self.lapse(checker, *stale)
            live = [acquired(self.ask(checker, name)) for name in names]
            answers = {
                (stale[0], b"stale"): False,
                (live[0], b"live"): True,
                (live[2], b"other"): True,
            }
            order = sorted(answers, key=lambda pair: pair[1], reverse=not live_first)
            owned = checker.protocol.complete_many([Completion(claim, result) for claim, result in order])
            assert owned == [answers[pair] for pair in order]
            assert self.ask(checker, names[0]).result == b"live"
            claims = [live[1], stale[1]] if live_first else [stale[1], live[1]]
            released = checker.protocol.release_many([(claim, None) for claim in claims])
            assert [answer.owned for answer in released] == [claim is live[1] for claim in claims]
            self.finish(checker, names[1])

    def test_a_group_of_2500_keys_is_claimed_completed_and_recognised(self) -> None:
        checker = self.checker()
        names = [f"m-{number}" for number in range(_LARGE)]
        owner = new_owner()
        claims = [
            acquired(d)
            for d in checker.protocol.claim_many([self.request(name, owner=owner) for name in names])
        ]
        assert len({claim.key for claim in claims}) == _LARGE
        completions = [Completion(claim, str(number).encode()) for number, claim in enumerate(claims)]
        assert checker.protocol.complete_many(completions) == [True] * _LARGE
        again = checker.protocol.claim_many([self.request(name) for name in names])
        assert [decision.verdict for decision in again] == [Verdict.DUPLICATE] * _LARGE
        assert [decision.result for decision in again] == [str(number).encode() for number in range(_LARGE)]

    @needs(Capability.LEASES)
    def test_2500_claims_are_renewed_and_released(self) -> None:
        checker = self.checker()
        owner = new_owner()
        requests = [self.request(f"m-{number}", owner=owner) for number in range(_LARGE)]
        claims = [acquired(decision) for decision in checker.protocol.claim_many(requests)]
        checker.protocol.release(claims[7])
        renewed = checker._renew_many(claims)
        assert [index for index, kept in enumerate(renewed) if not kept] == [7]
        released = checker.protocol.release_many([(claim, None) for claim in claims])
        assert [index for index, answer in enumerate(released) if not answer.owned] == [7]
        assert self.ask(checker, "m-2499").verdict is Verdict.ACQUIRED


class TransactionsContract(ContractBase):
    """The claims of one call end together, with the handlers' own writes."""

    @without(Capability.RECORDED_CLAIMS)
    def test_the_claims_of_a_group_live_in_one_transaction(self) -> None:
        checker = self.checker()
        decisions = checker.protocol.claim_many([self.request(name) for name in ("a", "b", "c")])
        transactions = {id(acquired(decision).transaction) for decision in decisions}
        assert len(transactions) == 1
        checker.protocol.release_many([(acquired(decision), None) for decision in decisions])

    @without(Capability.RECORDED_CLAIMS)
    def test_a_group_that_fails_frees_all_its_keys_and_counts_the_failed_ones(self) -> None:
        checker = self.checker()
        a, b, c = (
            acquired(d) for d in checker.protocol.claim_many([self.request(name) for name in ("a", "b", "c")])
        )
        assert checker.protocol.release_many([(a, None), (b, Failure("no", 100)), (c, None)]) == [
            Released(owned=True),
            Released(owned=True, attempts=1),
            Released(owned=True),
        ]
        again = [
            acquired(d) for d in checker.protocol.claim_many([self.request(name) for name in ("a", "b", "c")])
        ]
        assert all(checker.protocol.complete_many([Completion(claim) for claim in again]))

    @without(Capability.RECORDED_CLAIMS)
    def test_a_claim_that_waits_for_a_transaction_sees_how_it_ends(self) -> None:
        """A duplicate whose original is about to commit must not run when it has."""
        checker = self.checker()
        claim = self.acquire(checker)
        verdicts: list[Verdict] = []

        def ask() -> None:
            decision = self.ask(checker)
            verdicts.append(decision.verdict)
            if decision.claim is not None:
                checker.protocol.release(decision.claim)

        waiting = threading.Thread(target=ask)
        waiting.start()
        waiting.join(0.05)
        assert checker.lone.complete(claim)
        waiting.join()
        assert verdicts in ([Verdict.DUPLICATE], [Verdict.IN_PROGRESS])

    @needs(Capability.PARALLEL_CLAIMS)
    @without(Capability.RECORDED_CLAIMS)
    def test_a_failure_counts_although_a_copy_of_the_message_has_taken_the_key(self) -> None:
        """After a rollback, a copy that waited for the key has it before the failure is noted."""
        checker = self.checker()
        first = self.acquire(checker)
        checker.protocol.abandon(first)
        copy = self.acquire(checker)
        assert checker.protocol.release(first, Failure("no", 2)) == Released(owned=True, attempts=1)
        checker.protocol.abandon(copy)
        third = self.acquire(checker)
        assert checker.protocol.release(copy, Failure("no", 2)) == Released(owned=True, attempts=2, dead=True)
        # Its attempts were used up before: nothing more is counted, and the first reason is kept.
        assert checker.protocol.release(third, Failure("no", 2)) == Released(
            owned=True, attempts=2, dead=True
        )
        assert self.ask(checker).verdict is Verdict.DEAD

    @needs(Capability.PARALLEL_CLAIMS)
    @without(Capability.RECORDED_CLAIMS)
    def test_a_fatal_failure_is_dead_although_a_copy_of_the_message_has_taken_the_key(self) -> None:
        checker = self.checker()
        first = self.acquire(checker)
        checker.protocol.abandon(first)
        copy = self.acquire(checker)
        assert checker.protocol.release(first, Failure("never", 100, fatal=True)).dead
        assert checker.lone.complete(copy)
        assert self.ask(checker).verdict is Verdict.DUPLICATE


class TasksContract(ContractBase):
    """Tasks of an event loop claim and complete, and a cancelled one leaves its key free."""

    @needs(Capability.RECORDED_CLAIMS)
    def test_tasks_process_their_messages_at_once(self) -> None:
        everybody = asyncio.Barrier(_TASKS if self.has(Capability.PARALLEL_CLAIMS) else 1)

        async def handle(message: Message) -> str:
            await everybody.wait()
            return str(message.id)

        async def process_all() -> list[str]:
            consumer = _consumer_of(handle, self.checker())
            names = [str(number) for number in range(_TASKS)]
            results = await asyncio.gather(*(consumer(Message("contract", id=name)) for name in names))
            assert {result.outcome for result in results} == {Outcome.PROCESSED}
            return [str(result.value) for result in results]

        assert _run(process_all()) == [str(number) for number in range(_TASKS)]

    @needs(Capability.RECORDED_CLAIMS)
    def test_a_task_that_is_cancelled_in_its_handler_leaves_a_free_key(self) -> None:
        runs: list[Message] = []

        async def handle(message: Message) -> None:
            runs.append(message)
            if len(runs) == 1:
                running.set()
                await asyncio.sleep(_LONGEST_S)

        running = asyncio.Event()

        async def cancel_and_repeat() -> None:
            consumer = _consumer_of(handle, self.checker())
            task = asyncio.create_task(consumer.process(Message("contract", id="1")))
            await running.wait()
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            result = await consumer.process(Message("contract", id="1"))
            assert result.outcome is Outcome.PROCESSED

        _run(cancel_and_repeat())
        assert len(runs) == 2


def _consumer_of(handler: _Handler, checker: AbstractIdempotentChecker) -> AsyncConsumer:
    return Registry().consumer("contract", group="tasks", checker=checker)(handler)


def _run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(main, _LONGEST_S))
