"""The contract of checkers whose claims are open transactions."""

from __future__ import annotations

import threading

from idempotent.claims import Completion, Failure, Released, Verdict
from idempotent.testing.checker_contract.base import Capability, ContractBase, acquired, needs, without


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
        assert checker.protocol.release(third, Failure("no", 2)) == Released(
            owned=True, attempts=3, dead=True
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
