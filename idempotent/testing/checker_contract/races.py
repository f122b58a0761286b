"""The contract under contention: real threads, the same keys."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.claims import Claim, Completion, Failure, Lapsed, Verdict, new_owner
from idempotent.errors import DoomedTransactionError, StoreBusyError
from idempotent.testing.checker_contract.base import Capability, ContractBase, needs

_THREADS: Final = 8
_KEYS: Final = 200
_DEADLINE_S: Final = 150.0


class RacesContract(ContractBase):
    """However many ask at once, one gets the key."""

    def test_eight_threads_on_the_same_keys_process_each_once(self) -> None:
        checker = self.checker()
        processed: Counter[str] = Counter()

        def work(number: int) -> None:
            for name in _shuffled(number):
                self._until_settled(checker, name, _noting(processed, name))

        _run([work] * _THREADS)
        assert processed == Counter(_names())

    def test_eight_threads_with_failing_handlers_process_each_once(self) -> None:
        checker = self.checker()
        processed: Counter[str] = Counter()
        failed: Counter[str] = Counter()

        def work(number: int) -> None:
            chance = random.Random(number)
            for name in _shuffled(number)[: _KEYS // 4]:

                def handle(_claim: Claim, name: str = name) -> bool:
                    happens = chance.random() < 0.5
                    (processed if happens else failed).update([name])
                    return happens

                self._until_settled(checker, name, handle)

        _run([work] * _THREADS)
        assert set(processed.values()) == {1}
        for name, count in list(failed.items())[:20]:
            assert self.ask(checker, name).verdict is Verdict.DUPLICATE, (name, count)

    @needs(Capability.RECORDED_CLAIMS)
    def test_eight_threads_at_one_moment_get_one_claim(self) -> None:
        checker = self.checker()
        for round_number in range(20):
            claims: list[Claim] = []
            barrier = threading.Barrier(_THREADS)

            def work(_number: int, name: str = f"m-{round_number}") -> None:
                barrier.wait()  # noqa: B023 - the threads end before the loop goes on
                claim = self.ask(checker, name).claim
                if claim is not None:
                    claims.append(claim)  # noqa: B023

            _run([work] * _THREADS)
            assert len(claims) == 1
            assert checker.lone.complete(claims[0])

    @needs(Capability.LEASES)
    def test_a_lapsed_key_is_taken_over_by_one(self) -> None:
        checker = self.checker(lease_s=self.steady_lease_s)
        names = _names()[:40]
        lapsed = [self.acquire(checker, name) for name in names]
        self.lapse(checker, *lapsed)
        taken: Counter[str] = Counter()
        fences: list[tuple[int, int]] = []

        def work(_number: int) -> None:
            for name, old in zip(names, lapsed, strict=True):
                claim = self.ask(checker, name).claim
                if claim is not None:
                    taken.update([name])
                    fences.append((old.fence, claim.fence))
                    assert checker.lone.complete(claim)

        _run([work] * _THREADS)
        assert taken == Counter(names)
        assert all(old < new for old, new in fences)

    @needs(Capability.RECORDED_CLAIMS)
    def test_attempts_counted_at_once_are_all_counted(self) -> None:
        checker = self.checker()
        counted: list[int] = []

        def work(_number: int) -> None:
            for _ in range(10):
                self._until_settled(checker, "m-1", lambda _claim: False, on_failure=counted.append)

        _run([work] * 4)
        assert sorted(counted) == list(range(1, 41))

    def test_groups_in_opposite_order_do_not_get_in_each_others_way(self) -> None:
        """No deadlock reaches the caller, and nothing is lost or done twice."""
        checker = self.checker()
        processed: Counter[str] = Counter()

        def work(number: int) -> None:
            for start in range(0, _KEYS, 50):
                names = _names()[start : start + 50]
                self._process_group(checker, names[::-1] if number % 2 else names, processed)

        _run([work] * 4)
        assert processed == Counter(_names())
        again = checker.protocol.claim_many([self.request(name) for name in _names()])
        assert {decision.verdict for decision in again} == {Verdict.DUPLICATE}

    def _process_group(
        self, checker: AbstractIdempotentChecker, names: Sequence[str], processed: Counter[str]
    ) -> None:
        owner = new_owner()
        requests = [self.request(name, owner=owner, on_lapsed=Lapsed.LEAVE) for name in names]
        left = list(names)
        try:
            decisions = checker.protocol.claim_many(requests)
            mine = {n: d.claim for n, d in zip(names, decisions, strict=True) if d.claim is not None}
            if mine:
                assert all(checker.protocol.complete_many([Completion(claim) for claim in mine.values()]))
            processed.update(mine.keys())
            left = [
                name
                for name, decision in zip(names, decisions, strict=True)
                if decision.verdict is Verdict.IN_PROGRESS
            ]
        except (StoreBusyError, DoomedTransactionError):
            # A group that is one transaction may find a key locked; its messages then run one by one.
            if self.has(Capability.RECORDED_CLAIMS):
                raise
        for name in left:
            self._until_settled(checker, name, _noting(processed, name))

    def _fail(self, checker: AbstractIdempotentChecker, claim: Claim) -> int:
        try:
            released = checker.protocol.release(claim, Failure("no", 1_000_000))
        except StoreBusyError:
            if self.has(Capability.RECORDED_CLAIMS):
                raise
            return 0
        # Rolled back, the key is anybody's: by the time the failure is noted, somebody may have processed it.
        assert released.owned or not self.has(Capability.RECORDED_CLAIMS)
        return released.attempts

    def _until_settled(
        self,
        checker: AbstractIdempotentChecker,
        name: str,
        handle: Callable[[Claim], bool],
        on_failure: Callable[[int], object] | None = None,
    ) -> None:
        """Deliver a message until it is processed by somebody, or (with `on_failure`) has failed once here."""
        deadline = time.monotonic() + _DEADLINE_S
        while time.monotonic() < deadline:
            decision = self.ask(checker, name)
            if decision.verdict is Verdict.DUPLICATE:
                return
            if decision.claim is None:
                assert decision.verdict is Verdict.IN_PROGRESS
                time.sleep(random.uniform(0.0, 0.002))
            elif handle(decision.claim):
                assert checker.lone.complete(decision.claim)
                return
            else:
                attempts = self._fail(checker, decision.claim)
                if on_failure is not None:
                    on_failure(attempts)
                    return
        raise AssertionError(f"{name} was not settled in {_DEADLINE_S} s")


def _names() -> list[str]:
    return [f"m-{number}" for number in range(_KEYS)]


def _shuffled(seed: int) -> list[str]:
    names = _names()
    random.Random(seed).shuffle(names)
    return names


def _run(work: Sequence[Callable[[int], None]]) -> None:
    """Run all at once; raise what the first of them raises."""
    errors: list[BaseException] = []

    def guarded(function: Callable[[int], None], number: int) -> None:
        try:
            function(number)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=guarded, args=(function, number)) for number, function in enumerate(work)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _noting(processed: Counter[str], name: str) -> Callable[[Claim], bool]:
    """A handler that notes its name and succeeds."""

    def handle(_claim: Claim) -> bool:
        processed.update([name])
        return True

    return handle
