"""The contract of what is stored with a key: the handler's result, and the fingerprint of the content."""

from __future__ import annotations

from typing import Final

from idempotent.claims import Completion, Failure, Verdict
from idempotent.testing.checker_contract.base import Capability, ContractBase, acquired, needs

_RESULTS: Final = {
    "null": b"null",
    "zero": b"0",
    "false": b"false",
    "empty-text": b'""',
    "empty-list": b"[]",
    "empty-object": b"{}",
    "text": '"\N{LATIN SMALL LETTER E WITH ACUTE}\N{GRINNING FACE}"'.encode(),
    "bytes": bytes(range(256)),
    "megabyte": b'"' + b"x" * 1_000_000 + b'"',
}
_OURS: Final = bytes(range(20))
_OTHER: Final = bytes(range(20, 40))


class ContentContract(ContractBase):
    """Results and fingerprints come back as they were given."""

    def test_a_result_comes_back_to_the_byte(self) -> None:
        checker = self.checker()
        for name, result in _RESULTS.items():
            self.finish(checker, name, result)
        for name, result in _RESULTS.items():
            assert self.ask(checker, name).result == result, name

    def test_no_result_is_none(self) -> None:
        checker = self.checker()
        self.finish(checker)
        decision = self.ask(checker)
        assert decision.verdict is Verdict.DUPLICATE
        assert decision.result is None

    def test_a_group_stores_each_result_with_its_own_key(self) -> None:
        checker = self.checker()
        names = [*_RESULTS, "nothing"]
        decisions = checker.desk.claim_many([self.request(name) for name in names])
        completions = [
            Completion(acquired(decision), _RESULTS.get(name))
            for name, decision in zip(names, decisions, strict=True)
        ]
        assert all(checker.desk.complete_many(completions))
        again = checker.desk.claim_many([self.request(name) for name in names])
        assert [decision.result for decision in again] == [_RESULTS.get(name) for name in names]

    def test_a_fingerprint_is_kept_when_the_key_is_completed(self) -> None:
        """Else the same content would later look like other content."""
        checker = self.checker()
        checker.lone.complete(self.acquire(checker, fingerprint=_OURS))
        for asked_with in (None, _OURS, _OTHER):
            decision = self.ask(checker, fingerprint=asked_with)
            assert decision.verdict is Verdict.DUPLICATE
            assert decision.fingerprint == _OURS

    def test_no_fingerprint_is_none(self) -> None:
        checker = self.checker()
        self.finish(checker)
        assert self.ask(checker, fingerprint=_OURS).fingerprint is None

    @needs(Capability.RECORDED_CLAIMS)
    def test_the_fingerprint_of_a_key_in_progress_is_told(self) -> None:
        checker = self.checker()
        claim = self.acquire(checker, fingerprint=_OURS)
        assert self.ask(checker, fingerprint=_OTHER).fingerprint == _OURS
        assert checker.lone.complete(claim)

    @needs(Capability.RECORDED_CLAIMS)
    def test_the_fingerprint_of_a_dead_key_is_told(self) -> None:
        checker = self.checker()
        checker.desk.release(self.acquire(checker, fingerprint=_OURS), Failure("no", max_attempts=1))
        decision = self.ask(checker, fingerprint=_OTHER)
        assert decision.verdict is Verdict.DEAD
        assert decision.fingerprint == _OURS

    def test_a_release_forgets_the_fingerprint(self) -> None:
        """A producer that corrects a message nobody has processed may send it again."""
        checker = self.checker()
        checker.desk.release(self.acquire(checker, fingerprint=_OURS))
        checker.lone.complete(self.acquire(checker, fingerprint=_OTHER))
        assert self.ask(checker).fingerprint == _OTHER

    @needs(Capability.LEASES)
    def test_a_lapsed_key_with_other_content_is_left_alone(self) -> None:
        checker = self.checker(lease_s=self.brief_lease_s)
        claim = self.acquire(checker, fingerprint=_OURS)
        self.lapse(checker, claim)
        decision = self.ask(checker, fingerprint=_OTHER)
        assert decision.verdict is Verdict.IN_PROGRESS
        assert decision.lapsed
        assert decision.fingerprint == _OURS
        assert checker.lone.complete(claim)

    @needs(Capability.LEASES)
    def test_a_lapsed_key_with_the_same_content_is_taken_over(self) -> None:
        checker = self.checker(lease_s=self.brief_lease_s)
        self.lapse(checker, self.acquire(checker, fingerprint=_OURS))
        assert checker.lone.complete(self.acquire(checker, fingerprint=_OURS))
        assert self.ask(checker).fingerprint == _OURS
