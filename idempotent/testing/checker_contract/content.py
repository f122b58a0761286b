"""The contract of what is stored with a key: the handler's result, and the fingerprint of the content."""

from __future__ import annotations

from typing import Final

from idempotent.claims import Completion, Verdict
from idempotent.testing.checker_contract.base import ContractBase, acquired

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
        decisions = checker.protocol.claim_many([self.request(name) for name in names])
        completions = [
            Completion(acquired(decision), _RESULTS.get(name))
            for name, decision in zip(names, decisions, strict=True)
        ]
        assert all(checker.protocol.complete_many(completions))
        again = checker.protocol.claim_many([self.request(name) for name in names])
        assert [decision.result for decision in again] == [_RESULTS.get(name) for name in names]

    def test_a_release_forgets_the_fingerprint(self) -> None:
        """A producer that corrects a message nobody has processed may send it again."""
        checker = self.checker()
        checker.protocol.release(self.acquire(checker, fingerprint=_OURS))
        checker.lone.complete(self.acquire(checker, fingerprint=_OTHER))
        assert self.ask(checker).fingerprint == _OTHER
