"""The contract of key identity: exact, whatever the bytes."""

from __future__ import annotations

from typing import Final

from idempotent.claims import ClaimRequest, Verdict
from idempotent.keys import Key, KeySpace
from idempotent.testing.checker_contract.base import ContractBase, acquired

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
