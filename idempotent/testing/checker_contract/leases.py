"""The contract of leases: when they end, who goes on, and what the late owner may still do."""

from __future__ import annotations

import time
from typing import Final

from idempotent.claims import LAPSED_ERROR, Failure, KeyStatus, Lapsed, Verdict
from idempotent.testing.checker_contract.base import Capability, ContractBase, acquired, needs

_RENEWAL_DEADLINE_S: Final = 30.0


class LeasesContract(ContractBase):
    """A claim lapses; its key does not get lost."""

    @needs(Capability.LEASES)
    def test_a_key_in_progress_says_when_to_look_again(self) -> None:
        checker = self.checker(lease_s=60.0)
        claim = self.acquire(checker)
        assert 30.0 < self.ask(checker).retry_after_s <= 60.0
        checker.protocol.release(claim)

    @needs(Capability.LEASES)
    def test_a_late_completion_counts_when_nobody_took_over(self) -> None:
        """Else the effect would be repeated."""
        checker = self.checker(lease_s=self.brief_lease_s)
        claim = self.acquire(checker)
        self.lapse(checker, claim)
        assert checker.lone.complete(claim, b"1")
        decision = self.ask(checker)
        assert decision.verdict is Verdict.DUPLICATE
        assert decision.result == b"1"

    @needs(Capability.LEASES)
    def test_a_late_completion_changes_nothing_of_the_new_owner(self) -> None:
        checker = self.checker(lease_s=self.brief_lease_s)
        old = self.acquire(checker)
        self.lapse(checker, old)
        new = self.acquire(checker)
        assert not checker.lone.complete(old, b'"old"')
        assert self.left(checker, new).verdict is Verdict.IN_PROGRESS
        assert checker.lone.complete(new, b'"new"')
        assert not checker.lone.complete(old, b'"old"')
        assert self.ask(checker).result == b'"new"'

    @needs(Capability.LEASES)
    def test_a_late_release_changes_nothing_of_the_new_owner(self) -> None:
        checker = self.checker(lease_s=self.brief_lease_s)
        old = self.acquire(checker)
        self.lapse(checker, old)
        new = self.acquire(checker)
        assert not checker.protocol.release(old).owned
        assert not checker.protocol.release(old, Failure("late", 1)).owned
        assert self.left(checker, new).verdict is Verdict.IN_PROGRESS
        assert checker.protocol.release(new, Failure("no", 100)).attempts == 1

    @needs(Capability.LEASES)
    def test_a_late_release_frees_the_key_when_nobody_took_over(self) -> None:
        checker = self.checker(lease_s=self.brief_lease_s)
        claim = self.acquire(checker)
        self.lapse(checker, claim)
        assert checker.protocol.release(claim, Failure("late", 100)).attempts == 1
        decision = self.ask(checker)
        assert not decision.lapsed
        assert checker.lone.complete(acquired(decision))

    @needs(Capability.LEASES)
    def test_a_completed_or_dead_key_does_not_lapse(self) -> None:
        checker = self.checker(lease_s=self.brief_lease_s)
        self.finish(checker, "done")
        checker.protocol.release(self.acquire(checker, "dead"), Failure("no", 1))
        self.age(checker, self.brief_lease_s * 1.5)
        for on_lapsed in Lapsed:
            assert self.ask(checker, "done", on_lapsed=on_lapsed).verdict is Verdict.DUPLICATE
            assert self.ask(checker, "dead", on_lapsed=on_lapsed).verdict is Verdict.DEAD

    @needs(Capability.LEASES)
    def test_the_lapse_of_a_claim_made_alone_is_an_attempt(self) -> None:
        checker = self.checker(lease_s=self.brief_lease_s)
        self.lapse(checker, self.acquire(checker))
        claim = self.acquire(checker, max_attempts=2)
        assert checker.protocol.release(claim, Failure("no", 2)).attempts == 2
        assert self.ask(checker).verdict is Verdict.DEAD

    @needs(Capability.LEASES)
    def test_lapses_alone_kill_the_key_in_the_end(self) -> None:
        """A message that kills its process is not delivered for ever."""
        checker = self.checker(lease_s=self.brief_lease_s)
        self.lapse(checker, self.acquire(checker, max_attempts=2))
        self.lapse(checker, self.acquire(checker, max_attempts=2))
        decision = self.ask(checker, max_attempts=2)
        assert decision.verdict is Verdict.DEAD
        assert decision.claim is None
        assert decision.reason == LAPSED_ERROR
        assert self.ask(checker, max_attempts=2).reason == LAPSED_ERROR

    @needs(Capability.LEASES)
    def test_the_lapse_of_a_claim_made_in_a_group_is_no_attempt(self) -> None:
        checker = self.checker(lease_s=self.brief_lease_s)
        self.lapse(checker, self.acquire(checker, status=KeyStatus.IN_PROGRESS_GROUP))
        decision = self.ask(checker, max_attempts=1)
        assert decision.lapsed
        assert not decision.lapse_counts
        assert checker.protocol.release(acquired(decision), Failure("no", 100)).attempts == 1

    @needs(Capability.LEASES)
    def test_a_renewal_extends_the_lease(self) -> None:
        checker = self.checker(lease_s=self.steady_lease_s)
        claim = self.acquire(checker)
        self.lapse(checker, claim)
        assert checker._renew_many([claim]) == [True]
        decision = self.ask(checker)
        assert decision.verdict is Verdict.IN_PROGRESS
        assert not decision.lapsed
        assert checker.lone.complete(claim)

    @needs(Capability.LEASES)
    def test_a_renewal_gives_nothing_back_to_whom_the_key_is_lost(self) -> None:
        checker = self.checker(lease_s=self.brief_lease_s)
        lost, freed, done = (self.acquire(checker, name) for name in ("lost", "freed", "done"))
        self.lapse(checker, lost)
        new = self.acquire(checker, "lost")
        checker.protocol.release(freed)
        checker.lone.complete(done)
        kept = self.acquire(checker, "kept")
        assert checker._renew_many([lost, kept, freed, done]) == [False, True, False, False]
        assert checker.lone.complete(new)
        assert self.ask(checker, "done").verdict is Verdict.DUPLICATE
        assert checker.lone.complete(self.acquire(checker, "freed"))

    @needs(Capability.LEASES)
    def test_claims_in_flight_are_renewed_in_the_background(self) -> None:
        checker = self.checker(lease_s=self.lease_s)
        claim = self.acquire(checker)
        self.age(checker, self.lease_s * 1.5)
        deadline = time.monotonic() + _RENEWAL_DEADLINE_S
        while (decision := self.left(checker, claim)).lapsed:
            assert time.monotonic() < deadline, "the first lease ended, and nothing renewed it"
            time.sleep(self.lease_s / 10)
        assert decision.verdict is Verdict.IN_PROGRESS
        assert checker.lone.complete(claim)
