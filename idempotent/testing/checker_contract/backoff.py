"""The contract of backoff: nobody claims a failed key before its time, and whoever asks counts nothing."""

from __future__ import annotations

from idempotent.claims import Failure, Lapsed, Released, Verdict
from idempotent.testing.checker_contract.base import LONG_S, Capability, ContractBase, acquired, needs

_OURS, _THEIRS = b"o" * 20, b"t" * 20


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
            assert (decision.lapsed, decision.lapse_counts) == (False, False)
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
