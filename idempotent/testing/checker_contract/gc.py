"""The contract of forgetting: expired keys go, in bounded batches, and nothing that is still needed."""

from __future__ import annotations

import time

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.claims import (
    UNKNOWN_EFFECT,
    Claim,
    ClaimRequest,
    Completion,
    Decision,
    Failure,
    KeyStatus,
    Lapsed,
    Released,
    Verdict,
)
from idempotent.testing.checker_contract.base import LONG_S, Capability, ContractBase, needs, without


class GcContract(ContractBase):
    """Retention and garbage collection."""

    @needs(Capability.GARBAGE_COLLECTION)
    def test_an_expired_key_is_a_duplicate_until_it_is_collected(self) -> None:
        checker = self.checker(retention_s=self.brief_retention_s)
        self.finish(checker)
        self.age(checker, self.brief_retention_s * 2)
        assert self.ask(checker).verdict is Verdict.DUPLICATE
        assert checker.garbage_collect() == 1
        self.finish(checker)

    @without(Capability.GARBAGE_COLLECTION)
    def test_an_expired_key_is_forgotten_by_the_store(self) -> None:
        checker = self.checker(retention_s=self.brief_retention_s)
        self.finish(checker)
        deadline = time.monotonic() + 10.0
        while self.ask(checker).verdict is Verdict.DUPLICATE:
            assert time.monotonic() < deadline
            self.age(checker, self.brief_retention_s / 10)

    def test_a_key_that_has_not_expired_is_kept(self) -> None:
        checker = self.checker()
        self.finish(checker, "done")
        checker.protocol.release(self.acquire(checker, "dead"), Failure("no", 1))
        assert checker.garbage_collect() == 0
        assert self.ask(checker, "done").verdict is Verdict.DUPLICATE
        assert self.ask(checker, "dead").verdict is Verdict.DEAD

    @needs(Capability.RECORDED_CLAIMS)
    def test_a_live_lease_outlives_the_retention(self) -> None:
        checker = self.checker(lease_s=LONG_S * 24, retention_s=self.brief_retention_s)
        claim = self.acquire(checker)
        self.age(checker, self.brief_retention_s * 2)
        assert checker.garbage_collect() == 0
        assert self.ask(checker).verdict is Verdict.IN_PROGRESS
        assert checker.lone.complete(claim)

    @needs(Capability.RECORDED_CLAIMS)
    def test_a_claim_without_a_lease_outlives_the_retention(self) -> None:
        checker = self.checker(lease_s=None, retention_s=self.brief_retention_s)
        claim = self.acquire(checker)
        self.age(checker, self.brief_retention_s * 2)
        assert checker.garbage_collect() == 0
        assert self.ask(checker).verdict is Verdict.IN_PROGRESS
        assert checker.lone.complete(claim)

    @needs(Capability.GARBAGE_COLLECTION, Capability.LEASES)
    def test_an_expired_key_with_a_lapsed_lease_is_collected(self) -> None:
        checker = self.checker(lease_s=self.brief_lease_s, retention_s=self.brief_retention_s)
        self.lapse(checker, self.acquire(checker))
        self.age(checker, self.brief_retention_s * 2)
        assert checker.garbage_collect() == 1
        decision = self.ask(checker)
        assert decision.verdict is Verdict.ACQUIRED
        assert not decision.lapsed

    @needs(Capability.GARBAGE_COLLECTION, Capability.LEASES)
    def test_a_take_over_gives_an_expired_key_a_new_expiry_and_its_own_status(self) -> None:
        lease_s = self.brief_lease_s
        checker = self.checker(lease_s=lease_s, retention_s=5 * lease_s)
        statuses = {"alone": KeyStatus.IN_PROGRESS, "park": KeyStatus.IN_PROGRESS_PARK}
        self.lapse(checker, *(self.acquire(checker, name) for name in statuses))
        self.age(checker, 6 * lease_s)
        taken = [self.acquire(checker, name, status=status) for name, status in statuses.items()]
        self.lapse(checker, *taken)
        assert checker.garbage_collect() == 0
        self.age(checker, 6 * lease_s)
        assert checker.garbage_collect() == 1
        assert self.left(checker, taken[1]).lapsed

    @needs(Capability.LEASES)
    def test_a_key_that_waits_to_be_parked_is_never_forgotten(self) -> None:
        """Forgotten, it would run again although its effect is unknown."""
        checker = self.checker(lease_s=self.brief_lease_s, retention_s=self.brief_retention_s)
        self.lapse(checker, self.acquire(checker, status=KeyStatus.IN_PROGRESS_PARK))
        self.age(checker, self.brief_retention_s * 2)
        assert checker.garbage_collect() == 0
        assert self.ask(checker).lapsed

    def test_a_dead_key_and_its_reason_wait_for_a_person(self) -> None:
        """Collected, it would run again at its next delivery."""
        checker = self.checker(retention_s=self.brief_retention_s)
        checker.protocol.release(self.acquire(checker), Failure("no", 1))
        self.age(checker, self.brief_retention_s * 2)
        assert checker.garbage_collect() == 0
        decision = self.ask(checker)
        assert decision.verdict is Verdict.DEAD
        assert decision.reason == "no"

    @needs(Capability.LEASES)
    def test_a_parked_key_and_its_reason_wait_for_a_person(self) -> None:
        checker = self.checker(lease_s=self.brief_lease_s, retention_s=self.brief_retention_s)
        self.lapse(checker, self.acquire(checker, status=KeyStatus.IN_PROGRESS_PARK))
        assert self.ask(checker, on_lapsed=Lapsed.PARK).verdict is Verdict.DEAD
        self.age(checker, self.brief_retention_s * 2)
        assert checker.garbage_collect() == 0
        decision = self.ask(checker)
        assert decision.verdict is Verdict.DEAD
        assert decision.reason == UNKNOWN_EFFECT

    @needs(Capability.RECORDED_CLAIMS)
    def test_a_key_completed_after_its_expiry_is_remembered(self) -> None:
        """The next delivery of a message whose handler, or whose completion, took that long is a duplicate."""
        checker = self.checker(lease_s=LONG_S * 24, retention_s=self.steady_retention_s)
        alone, *group = [self.acquire(checker, name) for name in ("alone", "a", "b", "c")]
        self.age(checker, self.steady_retention_s * 1.1)
        assert checker.lone.complete(alone, b"1")
        assert checker.protocol.complete_many([Completion(claim) for claim in group]) == [True] * 3
        assert checker.garbage_collect() == 0
        for name in ("alone", "a", "b", "c"):
            assert self.ask(checker, name).verdict is Verdict.DUPLICATE

    @needs(Capability.RECORDED_CLAIMS)
    def test_a_key_completed_shortly_before_its_expiry_is_remembered(self) -> None:
        checker = self.checker(lease_s=LONG_S * 24, retention_s=self.steady_retention_s)
        claim = self.acquire(checker)
        self.age(checker, self.steady_retention_s * 0.8)
        assert checker.lone.complete(claim)
        self.age(checker, self.steady_retention_s * 0.4)
        assert checker.garbage_collect() == 0
        assert self.ask(checker).verdict is Verdict.DUPLICATE

    @needs(Capability.RECORDED_CLAIMS, Capability.GARBAGE_COLLECTION)
    def test_a_dead_key_that_its_owner_completes_expires(self) -> None:
        checker = self.checker(lease_s=LONG_S * 24, retention_s=self.brief_retention_s)
        claim = self.acquire(checker)
        assert checker.protocol.release(claim, Failure("no", 1)).dead
        assert checker.lone.complete(claim)
        assert self.ask(checker).verdict is Verdict.DUPLICATE
        self.age(checker, self.brief_retention_s * 2)
        assert checker.garbage_collect() == 1

    @needs(Capability.RECORDED_CLAIMS, Capability.GARBAGE_COLLECTION)
    def test_a_collected_key_takes_its_attempts_with_it(self) -> None:
        checker = self.checker(retention_s=self.brief_retention_s)
        assert checker.protocol.release(self.acquire(checker), Failure("no", 5)).attempts == 1
        assert checker.lone.complete(self.acquire(checker))
        self.age(checker, self.brief_retention_s * 2)
        assert checker.garbage_collect() == 1
        assert checker.protocol.release(self.acquire(checker), Failure("no", 5)).attempts == 1

    def test_attempts_of_a_key_that_is_gone_are_forgotten(self) -> None:
        checker = self.checker(retention_s=self.brief_retention_s)
        assert checker.protocol.release(self.acquire(checker), Failure("no", 5)).attempts == 1
        self.age(checker, self.brief_retention_s * 2)
        assert checker.garbage_collect() == 0
        assert checker.protocol.release(self.acquire(checker), Failure("no", 5)).attempts == 1

    @needs(Capability.GARBAGE_COLLECTION)
    def test_a_duplicate_does_not_make_the_key_live_longer(self) -> None:
        checker = self.checker(retention_s=self.brief_retention_s * 5)
        self.finish(checker)
        for _ in range(6):
            self.age(checker, self.brief_retention_s)
            assert self.ask(checker).verdict is Verdict.DUPLICATE
        assert checker.garbage_collect() == 1

    @needs(Capability.GARBAGE_COLLECTION)
    def test_garbage_is_collected_in_bounded_batches(self) -> None:
        checker = self.checker(retention_s=self.brief_retention_s)
        for number in range(8):
            self.finish(checker, f"m-{number}")
        self.age(checker, self.brief_retention_s * 2)
        assert checker._garbage_collect(3) == 3
        totals: list[int] = []
        assert checker.garbage_collect(batch_size=2, on_batch=totals.append) == 5
        assert totals == [2, 4, 5]
        assert checker.garbage_collect() == 0

    @needs(Capability.GARBAGE_COLLECTION)
    def test_one_collects_at_a_time(self) -> None:
        checker = self.checker(retention_s=self.brief_retention_s)
        self.finish(checker)
        self.age(checker, self.brief_retention_s * 2)
        first = _Interrupted(checker)
        assert first.garbage_collect_alone() == 1
        assert first.meanwhile == [None]
        assert checker.garbage_collect_alone() == 0


class _Interrupted(AbstractIdempotentChecker):
    """Collects for another checker, under its lock, and lets it try to collect in the middle of that."""

    def __init__(self, checker: AbstractIdempotentChecker) -> None:
        super().__init__(lease_s=checker.lease_s, retention_s=checker.retention_s)
        self._checker = checker
        self.meanwhile: list[int | None] = []

    def _claim(self, request: ClaimRequest) -> Decision:
        return self._checker._claim(request)

    def _complete(self, completion: Completion) -> bool:
        return self._checker._complete(completion)

    def _release(self, claim: Claim, failure: Failure | None) -> Released:
        return self._checker._release(claim, failure)

    def _garbage_collect(self, limit: int) -> int:
        self.meanwhile.append(self._checker.garbage_collect_alone())
        return self._checker._garbage_collect(limit)

    @property
    def _leader(self) -> AbstractIdempotentChecker:
        return self._checker._leader  # noqa: SLF001 - the same lock as the checker's
