"""The contract of claims that end without a completion: counted failures, backoff, and leases that lapse."""

from __future__ import annotations

import time
from typing import Final

from idempotent.claims import Failure, Lapsed, Released, Verdict, new_owner
from idempotent.testing.checker_contract.base import LONG_S, Capability, ContractBase, acquired, needs
from idempotent.values import changed

_MANY: Final = 100
_OURS, _THEIRS = b"o" * 20, b"t" * 20
_RENEWAL_DEADLINE_S: Final = 30.0


class FailuresContract(ContractBase):
    """A failure frees the key and counts; nothing else counts."""

    def test_a_failure_frees_the_key_and_counts_one_attempt(self) -> None:
        checker = self.checker()
        released = checker.protocol.release(self.acquire(checker), Failure("no", _MANY))
        assert released == Released(owned=True, attempts=1, dead=False)
        self.finish(checker)
        assert self.ask(checker).verdict is Verdict.DUPLICATE

    def test_attempts_add_up(self) -> None:
        checker = self.checker()
        for expected in (1, 2, 3):
            assert checker.protocol.release(self.acquire(checker), Failure("no", _MANY)).attempts == expected

    def test_a_release_without_a_failure_counts_nothing(self) -> None:
        checker = self.checker()
        checker.protocol.release(self.acquire(checker), Failure("no", _MANY))
        checker.protocol.release(self.acquire(checker))
        assert checker.protocol.release(self.acquire(checker), Failure("no", _MANY)).attempts == 2

    def test_contention_counts_nothing(self) -> None:
        checker = self.checker()
        claim = self.acquire(checker, max_attempts=2)
        for _ in range(3):
            assert self.ask(checker, max_attempts=2).verdict is Verdict.IN_PROGRESS
        assert checker.protocol.release(claim, Failure("no", 2)).attempts == 1

    def test_attempts_belong_to_one_key(self) -> None:
        checker = self.checker()
        checker.protocol.release(self.acquire(checker, "m-1"), Failure("no", _MANY))
        assert checker.protocol.release(self.acquire(checker, "m-2"), Failure("no", _MANY)).attempts == 1

    def test_the_last_attempt_kills_the_key(self) -> None:
        checker = self.checker()
        assert not checker.protocol.release(self.acquire(checker), Failure("first", 2)).dead
        assert checker.protocol.release(self.acquire(checker), Failure("second", 2)) == Released(
            owned=True, attempts=2, dead=True
        )
        for _ in range(2):
            decision = self.ask(checker)
            assert decision.verdict is Verdict.DEAD
            assert decision.claim is None
            assert decision.reason == "second"

    def test_a_fatal_failure_kills_the_key_at_once(self) -> None:
        checker = self.checker()
        released = checker.protocol.release(self.acquire(checker), Failure("never", _MANY, fatal=True))
        assert released.dead
        decision = self.ask(checker)
        assert decision.verdict is Verdict.DEAD
        assert decision.reason == "never"

    def test_an_error_of_any_text_can_be_kept(self) -> None:
        checker = self.checker()
        error = "ValueError: a\x00b\nc \N{GRINNING FACE} \udcff " + "x" * 5000
        assert checker.protocol.release(self.acquire(checker), Failure(error, _MANY, fatal=True)).dead
        reason = self.ask(checker).reason
        assert reason is not None
        assert reason.startswith("ValueError: a")
        assert "\N{GRINNING FACE}" in reason

    @needs(Capability.RECORDED_CLAIMS)
    def test_a_failure_of_somebody_else_counts_nothing(self) -> None:
        checker = self.checker()
        claim = self.acquire(checker)
        stranger = changed(claim, owner=new_owner())
        for failure in (Failure("no", _MANY), Failure("no", 1), Failure("no", _MANY, fatal=True)):
            assert not checker.protocol.release(stranger, failure).owned
        assert self.ask(checker).verdict is Verdict.IN_PROGRESS
        assert checker.protocol.release(claim, Failure("no", _MANY)).attempts == 1

    @needs(Capability.RECORDED_CLAIMS)
    def test_a_failure_after_completion_counts_nothing(self) -> None:
        checker = self.checker()
        claim = self.acquire(checker)
        checker.lone.complete(claim)
        assert not checker.protocol.release(claim, Failure("no", 1)).owned
        assert self.ask(checker).verdict is Verdict.DUPLICATE

    @needs(Capability.RECORDED_CLAIMS)
    def test_a_dead_key_stays_dead_when_it_is_released_again(self) -> None:
        checker = self.checker()
        claim = self.acquire(checker)
        checker.protocol.release(claim, Failure("no", 1))
        assert not checker.protocol.release(claim).owned
        assert not checker.protocol.release(claim, Failure("no", _MANY)).owned
        assert self.ask(checker).verdict is Verdict.DEAD


class BackoffContract(ContractBase):
    """A failure frees the key after its backoff."""

    def fail(self, message_id: str = "m-1", *, max_attempts: int = 100) -> Released:
        """A delivery whose handler raises."""
        return self.failing.protocol.release(
            self.acquire(self.failing, message_id, fingerprint=_OURS),
            Failure("no", max_attempts, backoff=self.backoff),
        )

    def test_a_failed_key_does_not_hold_up_its_group(self) -> None:
        self.failing = checker = self.checker()
        assert self.fail() == Released(owned=True, attempts=1)
        together = checker.protocol.claim_many([self.request("m-0"), self.request(), self.request("m-2")])
        assert [decision.verdict for decision in together] == [
            Verdict.ACQUIRED,
            Verdict.IN_PROGRESS,
            Verdict.ACQUIRED,
        ]
        checker.protocol.release_many([(acquired(together[0]), None), (acquired(together[2]), None)])

    def test_a_failed_key_is_claimed_anew_after_its_backoff(self) -> None:
        """Whatever a delivery does with lapsed leases: this one has not lapsed."""
        self.failing = checker = self.checker(retention_s=100 * LONG_S)
        fence = 0
        for attempts, on_lapsed in enumerate(Lapsed, start=1):
            self.fail()
            self.age(checker, self.backoff.delay_s(attempts) + 1.0)
            decision = self.ask(checker, on_lapsed=on_lapsed, fingerprint=_THEIRS)
            claim = acquired(decision)
            assert not decision.lapsed
            assert claim.attempt in {None, attempts + 1}
            assert claim.fence > fence
            fence = claim.fence
            checker.protocol.release(claim)
        self.finish(checker)
        assert self.ask(checker).verdict is Verdict.DUPLICATE

    def test_many_failed_keys_are_claimed_anew_together(self) -> None:
        self.failing = checker = self.checker(retention_s=100 * LONG_S)
        for number in range(5):
            self.fail(f"m-{number}")
        self.age(checker, self.backoff.initial_s + 1.0)
        self.fail("later")
        requests = [self.request(f"m-{number}") for number in (4, 0, 7, 2)] + [self.request("later")]
        decisions = checker.protocol.claim_many(requests)
        assert [decision.verdict for decision in decisions] == [Verdict.ACQUIRED] * 4 + [Verdict.IN_PROGRESS]
        assert not any(decision.lapsed for decision in decisions)
        checker.protocol.release_many([(acquired(decision), None) for decision in decisions[:4]])

    def test_each_failure_is_followed_by_the_backoff_of_its_attempt(self) -> None:
        self.failing = checker = self.checker(retention_s=100 * LONG_S)
        for attempts in (1, 2, 3):
            assert self.fail().attempts == attempts
            delay_s = self.backoff.initial_s * 2 ** (attempts - 1)
            rest_s = self.ask(checker).retry_after_s
            assert delay_s / 2 < rest_s <= delay_s
            self.age(checker, delay_s + 1.0)

    def test_the_last_attempt_kills_the_key_whatever_its_backoff(self) -> None:
        self.failing = checker = self.checker()
        assert not self.fail(max_attempts=2).dead
        self.age(checker, self.backoff.initial_s + 1.0)
        assert self.fail(max_attempts=2) == Released(owned=True, attempts=2, dead=True)
        assert self.ask(checker).verdict is Verdict.DEAD

    @needs(Capability.RECORDED_CLAIMS)
    def test_who_failed_owns_the_key_no_more(self) -> None:
        self.failing = checker = self.checker()
        claim = self.acquire(checker)
        checker.protocol.release(claim, Failure("no", 100, backoff=self.backoff))
        assert not checker.protocol.complete(claim)
        assert not checker.protocol.release(claim).owned
        assert not checker.protocol.release(claim, Failure("again", 100, backoff=self.backoff)).owned
        assert checker._renew_many([claim]) == [False]
        assert self.ask(checker).verdict is Verdict.IN_PROGRESS
        self.age(checker, self.backoff.initial_s + 1.0)
        assert self.fail().attempts == 2

    def test_a_release_without_a_failure_frees_the_key_at_once(self) -> None:
        self.failing = checker = self.checker()
        self.fail()
        self.age(checker, self.backoff.initial_s + 1.0)
        checker.protocol.release(self.acquire(checker))
        assert self.fail().attempts == 2

    @needs(Capability.GARBAGE_COLLECTION)
    def test_a_key_that_waits_for_its_retry_is_collected_after_its_time(self) -> None:
        self.failing = checker = self.checker(retention_s=self.backoff.initial_s / 4)
        self.fail()
        self.age(checker, self.backoff.initial_s * 0.5)
        assert checker.garbage_collect() == 0
        assert self.ask(checker).verdict is Verdict.IN_PROGRESS
        self.age(checker, self.backoff.initial_s * 0.75)
        assert checker.garbage_collect() == 1
        checker.protocol.release(self.acquire(checker))


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
    def test_lapses_in_a_row_are_deaths_and_no_attempts(self) -> None:
        checker = self.checker(lease_s=self.brief_lease_s)
        self.lapse(checker, self.acquire(checker))
        for deaths in (1, 2):
            decision = self.ask(checker)
            claim = acquired(decision)
            assert (decision.deaths, claim.deaths) == (deaths, deaths)
            self.lapse(checker, claim)
            assert self.left(checker, claim).deaths == deaths + 1
        assert checker.protocol.release(acquired(self.ask(checker)), Failure("no", 2)).attempts == 1

    @needs(Capability.LEASES)
    def test_whatever_ends_a_run_forgets_its_deaths(self) -> None:
        checker = self.checker(lease_s=self.brief_lease_s)
        for failure in (None, Failure("no", 100)):
            self.lapse(checker, self.acquire(checker))
            checker.protocol.release(acquired(self.ask(checker)), failure)
            claim = self.acquire(checker)
            assert claim.deaths == 0
            checker.protocol.release(claim)

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
