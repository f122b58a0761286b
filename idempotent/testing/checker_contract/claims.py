"""The contract of one key: who claims, completes and releases it, what is stored with it, and what tells it apart."""

from __future__ import annotations

from typing import Final

from idempotent.checkers.transactions import transactions_of
from idempotent.claims import ClaimRequest, Completion, Guarantee, Verdict, new_owner
from idempotent.keys import Key, KeySpace
from idempotent.testing.checker_contract.base import LONG_S, Capability, ContractBase, acquired, needs
from idempotent.values import changed

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
# Each family is a trap that some store or some way of joining key parts falls into.
_IDS: Final[dict[str, tuple[str | bytes, ...]]] = {
    "letter case": ("Order-1", "order-1", "ORDER-1", "stra\N{LATIN SMALL LETTER SHARP S}e", "strasse"),
    "trailing blanks": ("order-1 ", "order-1  ", "order-1\t", "order-1\n", " order-1"),
    "unicode form": ("caf\N{LATIN SMALL LETTER E WITH ACUTE}", "cafe\N{COMBINING ACUTE ACCENT}", "cafe"),
    "NUL": ("a\x00b", "a\x00c", "a", "a\x00", "\x00", "\x00\x00"),
    "emptiness": ("", "0", "None", "null"),
    "length": ("x" * 255, "x" * 256, "x" * 255 + "y", "x" * 1_000_000, "x" * 999_999 + "y"),
    "bytes": (b"\xff", b"\xfe", b"\xff\xff", "\N{LATIN SMALL LETTER Y WITH DIAERESIS}", "\udcff"),
    "escapes": ("a%2Fb", "a/b", "a:b", "a%3Ab", "%", "%25", "'", "''", '"', "\\", "\\\\"),
    "beyond the BMP": ("\N{GRINNING FACE}", "\N{GRINNING FACE WITH SMILING EYES}", "\ufffd"),
}
_PARTS: Final = (
    ("a", "b", "c:d"),
    ("a", "b:c", "d"),
    ("a:b", "c", "d"),
    ("a", "", "b"),
    ("", "a", "b"),
    ("ab", "", ""),
    ("a", "b", ""),
    ("", "ab", ""),
    ("", "", "ab"),
    ("A", "b", ""),
    ("a ", "b", ""),
)


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


class KeysContract(ContractBase):
    """Different keys are different, equal keys are equal."""

    def test_keys_that_look_alike_are_different(self) -> None:
        checker = self.checker()
        keys = _confusable_keys()
        for key in keys:
            claim = acquired(checker.lone.claim(ClaimRequest(key)))
            assert checker.lone.complete(claim, key.hash)
        for key in keys:
            decision = checker.lone.claim(ClaimRequest(key))
            assert decision.verdict is Verdict.DUPLICATE, key
            assert decision.result == key.hash, key

    def test_keys_that_look_alike_are_different_in_one_group(self) -> None:
        checker = self.checker()
        keys = _confusable_keys()
        claims = [
            acquired(decision)
            for decision in checker.protocol.claim_many([ClaimRequest(key) for key in keys])
        ]
        assert [claim.key for claim in claims] == keys
        assert all(
            answer.owned for answer in checker.protocol.release_many([(claim, None) for claim in claims])
        )

    def test_text_and_its_bytes_are_the_same_id(self) -> None:
        checker = self.checker()
        self.finish(checker, "caf\N{LATIN SMALL LETTER E WITH ACUTE}")
        again = self.ask(checker, "caf\N{LATIN SMALL LETTER E WITH ACUTE}".encode())
        assert again.verdict is Verdict.DUPLICATE

    def test_the_longest_names_of_consumers_are_kept_apart(self) -> None:
        checker = self.checker()
        # Topics of Kafka have up to 249 characters.
        spaces = [KeySpace("t" * 248 + end, "g" * 249) for end in "ab"]
        for space in spaces:
            claim = acquired(checker.lone.claim(ClaimRequest(space.key("1"))))
            assert checker.lone.complete(claim)
            assert checker.lone.claim(ClaimRequest(space.key("1"))).verdict is Verdict.DUPLICATE


def _confusable_keys() -> list[Key]:
    ids = [message_id for family in _IDS.values() for message_id in family]
    space = KeySpace("contract", "keys")
    keys = [space.key(message_id) for message_id in ids]
    keys += [KeySpace(subject, group).key(message_id) for subject, group, message_id in _PARTS]
    assert len({key.hash for key in keys}) == len(keys)
    return keys
