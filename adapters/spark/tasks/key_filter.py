"""KeyFilter: the verdicts of a partition's keys (mode dedup), a chunk in each round trip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from idempotent.adapters.spark.ledger.run_claims import Decision, RunClaims, Verdict
from idempotent.adapters.spark.tasks.chunks import chunks
from idempotent.adapters.spark.tasks.handle import RunHandle
from idempotent.adapters.spark.tasks.ledgers import claims_for

T = TypeVar("T")


class KeyFilter:
    """The verdicts of one partition's keys.

    Args:
        handle: the run.
    """

    def __init__(self, handle: RunHandle) -> None:
        """Check that the store knows the run."""
        self._claims: RunClaims = claims_for(handle)
        self._counters = handle.counters
        self.chunk = handle.chunk

    def decide(self, hashes: Sequence[bytes]) -> list[Verdict]:
        """The verdicts of rows, aligned. Several rows may have the same key.

        Raises:
            RunError, StoreError: see RunClaims.
        """
        different: Sequence[bytes] = list(dict.fromkeys(hashes))
        verdicts: list[Verdict] = []
        for start in range(0, len(different), self.chunk):
            verdicts += self._claims.decide(different[start : start + self.chunk])
        if len(different) < len(hashes):
            of_key = dict(zip(different, verdicts, strict=True))
            verdicts = [of_key[each] for each in hashes]
        self._count(verdicts)
        return verdicts

    def compare(self, hashes: Sequence[bytes], payloads: Sequence[bytes]) -> tuple[list[Verdict], list[bool]]:
        """As `decide`, and for each row whether its payload differs from the one that its key was claimed with.

        Raises:
            RunError, StoreError: see RunClaims.
        """
        # A key is claimed with the payload of its first row.
        marks = dict(zip(reversed(hashes), reversed(payloads), strict=True))
        decided: dict[bytes, Decision] = {}
        for part in chunks(dict.fromkeys(hashes), self.chunk):
            decisions = self._claims.decide_each(part, [marks[key_hash] for key_hash in part])
            decided.update(zip(part, decisions, strict=True))
        verdicts = [decided[each].verdict for each in hashes]
        changed = [
            decided[key_hash].other_payload or payload != marks[key_hash]
            for key_hash, payload in zip(hashes, payloads, strict=True)
        ]
        self._count(verdicts)
        return verdicts, changed

    def rows(self, rows: Iterable[T], hashes: Iterable[bytes]) -> Iterator[T]:
        """The rows that are new."""
        for part in chunks(zip(rows, hashes, strict=True), self.chunk):
            for (row, _), verdict in zip(part, self.decide([each for _, each in part]), strict=True):
                if verdict is Verdict.NEW:
                    yield row

    def _count(self, verdicts: Sequence[Verdict]) -> None:
        if self._counters is not None:
            # Not a Counter: hashing an enum member takes longer than the rest of the work for a row.
            self._counters.add({each: verdicts.count(each) for each in Verdict})
