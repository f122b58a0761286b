"""The contract of claiming, completing and releasing one key."""

from __future__ import annotations

from idempotent.checkers.transactions import transactions_of
from idempotent.claims import Completion, Guarantee, Verdict, new_owner
from idempotent.testing.checker_contract.base import LONG_S, Capability, ContractBase, needs
from idempotent.values import changed


class ClaimsContract(ContractBase):
    """Who owns a key, and what others are told."""

    def test_the_guarantee_is_what_the_checker_can_do(self) -> None:
        checker = self.checker()
        if not self.has(Capability.RECORDED_CLAIMS):
            expected = Guarantee.TRANSACTIONAL
        else:
            expected = Guarantee.LEASED if self.has(Capability.LEASES) else Guarantee.CLAIM_ONCE
        assert checker.guarantee is expected
        assert checker.group_is_atomic is (not self.has(Capability.RECORDED_CLAIMS))

    def test_a_completed_key_is_a_duplicate(self) -> None:
        checker = self.checker()
        self.finish(checker)
        for _ in range(3):
            decision = self.ask(checker)
            assert decision.verdict is Verdict.DUPLICATE
            assert decision.claim is None

    def test_a_key_in_progress_is_neither_acquired_nor_a_duplicate(self) -> None:
        checker = self.checker()
        claim = self.acquire(checker)
        decision = self.ask(checker)
        assert decision.verdict is Verdict.IN_PROGRESS
        assert decision.claim is None
        assert not decision.lapsed
        assert 0 < decision.retry_after_s <= LONG_S
        assert checker.lone.complete(claim)

    @needs(Capability.PARALLEL_CLAIMS)
    def test_a_claim_leaves_other_keys_alone(self) -> None:
        checker = self.checker()
        first = self.acquire(checker, "m-1")
        second = self.acquire(checker, "m-2")
        checker.protocol.release(first)
        assert checker.lone.complete(second)
        assert self.ask(checker, "m-2").verdict is Verdict.DUPLICATE
        checker.protocol.release(self.acquire(checker, "m-1"))

    def test_a_released_key_is_free_again(self) -> None:
        checker = self.checker()
        assert checker.protocol.release(self.acquire(checker)).owned
        again = self.acquire(checker)
        assert checker.lone.complete(again)
        assert self.ask(checker).verdict is Verdict.DUPLICATE

    def test_the_fence_grows_after_a_release(self) -> None:
        checker = self.checker()
        fences = []
        for _ in range(3):
            claim = self.acquire(checker)
            fences.append(claim.fence)
            checker.protocol.release(claim)
        assert fences == sorted(set(fences))

    @needs(Capability.RECORDED_CLAIMS)
    def test_only_the_owner_completes(self) -> None:
        checker = self.checker()
        claim = self.acquire(checker)
        stranger = changed(claim, owner=new_owner())
        assert not checker.lone.complete(stranger, b'"stolen"')
        assert self.ask(checker).verdict is Verdict.IN_PROGRESS
        assert checker.lone.complete(claim, b'"mine"')
        assert not checker.lone.complete(stranger, b'"stolen"')
        assert self.ask(checker).result == b'"mine"'

    @needs(Capability.RECORDED_CLAIMS)
    def test_only_the_owner_releases(self) -> None:
        checker = self.checker()
        claim = self.acquire(checker)
        assert not checker.protocol.release(changed(claim, owner=new_owner())).owned
        assert self.ask(checker).verdict is Verdict.IN_PROGRESS
        assert checker.lone.complete(claim)

    def test_a_completed_key_cannot_be_released(self) -> None:
        checker = self.checker()
        claim = self.acquire(checker)
        assert checker.lone.complete(claim)
        released = checker.protocol.release(claim)
        assert not (released.owned and self.has(Capability.RECORDED_CLAIMS))
        assert self.ask(checker).verdict is Verdict.DUPLICATE

    @needs(Capability.RECORDED_CLAIMS)
    def test_a_released_claim_cannot_complete(self) -> None:
        checker = self.checker()
        claim = self.acquire(checker)
        checker.protocol.release(claim)
        assert not checker.lone.complete(claim)
        assert not checker.protocol.release(claim).owned
        self.finish(checker)

    @needs(Capability.RECORDED_CLAIMS)
    def test_a_released_claim_changes_nothing_of_the_next_one(self) -> None:
        checker = self.checker()
        old = self.acquire(checker)
        checker.protocol.release(old)
        new = self.acquire(checker)
        assert not checker.lone.complete(old)
        assert not checker.protocol.release(old).owned
        assert self.ask(checker).verdict is Verdict.IN_PROGRESS
        assert checker.lone.complete(new)

    @needs(Capability.RECORDED_CLAIMS)
    def test_completing_twice_changes_nothing(self) -> None:
        """The answer to the first may have been lost on the way."""
        checker = self.checker()
        claim = self.acquire(checker)
        assert checker.lone.complete(claim, b"1")
        assert checker.lone.complete(claim, b"1")
        assert self.ask(checker).result == b"1"

    @needs(Capability.RECORDED_CLAIMS)
    def test_completing_again_without_a_result_keeps_the_stored_one(self) -> None:
        checker = self.checker()
        claim = self.acquire(checker)
        assert checker.lone.complete(claim, b"1")
        assert checker.lone.complete(claim)
        assert checker._complete_many([Completion(claim)]) == [True]
        assert self.ask(checker).result == b"1"

    @needs(Capability.RECORDED_CLAIMS)
    def test_a_claim_without_a_lease_never_lapses(self) -> None:
        checker = self.checker(lease_s=None)
        assert checker.guarantee is Guarantee.CLAIM_ONCE
        claim = self.acquire(checker)
        self.age(checker, self.brief_lease_s * 2)
        decision = self.ask(checker)
        assert decision.verdict is Verdict.IN_PROGRESS
        assert not decision.lapsed
        assert decision.retry_after_s > 0
        assert checker.lone.complete(claim)
        assert self.ask(checker).verdict is Verdict.DUPLICATE

    def test_no_key_can_be_completed_and_released(self) -> None:
        """A handler that is allowed to run without a key takes the same way."""
        checker = self.checker()
        assert checker.lone.complete(transactions_of(checker).claim_nothing())
        assert checker.protocol.release(transactions_of(checker).claim_nothing()).owned

    def test_closing_twice_is_harmless(self) -> None:
        checker = self.checker()
        self.finish(checker)
        checker.close()
        checker.close()
