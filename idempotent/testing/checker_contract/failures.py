"""The contract of failures: attempts are counted beside the key, and the last one kills it."""

from __future__ import annotations

from idempotent.claims import Failure, Released, Verdict, new_owner
from idempotent.testing.checker_contract.base import Capability, ContractBase, needs
from idempotent.values import changed

_MANY = 100


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
    def test_a_failure_that_keeps_the_claim_counts_and_stays_the_owner(self) -> None:
        checker = self.checker()
        claim = self.acquire(checker)
        released = checker.protocol.release(claim, Failure("no", _MANY, keep_claim=True))
        assert released == Released(owned=True, attempts=1, dead=False)
        assert self.ask(checker).verdict is Verdict.IN_PROGRESS
        assert checker.lone.complete(claim)
        assert self.ask(checker).verdict is Verdict.DUPLICATE

    @needs(Capability.RECORDED_CLAIMS)
    def test_a_failure_that_keeps_the_claim_still_kills_when_attempts_are_used_up(self) -> None:
        checker = self.checker()
        claim = self.acquire(checker)
        assert checker.protocol.release(claim, Failure("no", 1, keep_claim=True)).dead
        assert self.ask(checker).verdict is Verdict.DEAD

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
