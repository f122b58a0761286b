"""Mode dedup on an executor: rows in, verdicts out, a chunk of keys in each round trip."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from idempotent.errors import FingerprintMismatchError

from .chunks import chunks
from .executor import claims_for
from .handle import RunHandle
from .keys import HASH_COLUMN
from .ledger.claims import Decision, RunClaims, Verdict

STATUS_COLUMN: Final = "_idem"
"""The column of `emit="status"`."""
PAYLOAD_COLUMN: Final = "_idem_payload"
"""The column that carries fingerprints between Spark's stages."""

T = TypeVar("T")


class Fate(NamedTuple):
    """What becomes of one row.

    Attributes:
        verdict: of its key.
        changed: the key was claimed for a row with another payload.
    """

    verdict: Verdict
    changed: bool

    @property
    def is_new(self) -> bool:
        """Whether the row is emitted."""
        return self.verdict is Verdict.NEW and not self.changed

    @property
    def status(self) -> str:
        """The text for `STATUS_COLUMN`."""
        return "changed" if self.changed else self.verdict.value


class KeyFilter:
    """Decides about the keys of one partition.

    Args:
        handle: the run.
    """

    def __init__(self, handle: RunHandle) -> None:
        """Look that the store is the right one."""
        self._claims: RunClaims = claims_for(handle)
        self._counters = handle.counters
        self._chunk = handle.chunk

    def decide(self, hashes: Sequence[bytes], payloads: Sequence[bytes] | None = None) -> list[Fate]:
        """Decide about rows, which may have keys in common. Aligned.

        Raises:
            RunError, StoreError: see RunClaims.
        """
        # Of rows with a common key the first is what the key was claimed for.
        marks = dict(zip(reversed(hashes), reversed(payloads), strict=True)) if payloads else None
        decided: dict[bytes, Decision] = {}
        for part in chunks(dict.fromkeys(hashes), self._chunk):
            fingerprints = [marks[key_hash] for key_hash in part] if marks else None
            decided.update(zip(part, self._claims.decide_each(part, fingerprints), strict=True))
        fates = [Fate(decided[each].verdict, changed=decided[each].other_payload) for each in hashes]
        if marks and payloads:
            fates = [
                fate._replace(changed=fate.changed or payload != marks[key_hash])
                for fate, key_hash, payload in zip(fates, hashes, payloads, strict=True)
            ]
        if self._counters is not None:
            self._counters.add(Counter(fate.verdict for fate in fates))
        return fates

    def rows(self, rows: Iterable[T], hashes: Iterable[bytes]) -> Iterator[T]:
        """The rows that are new."""
        for part in chunks(zip(rows, hashes, strict=True), self._chunk):
            for (row, _), fate in zip(part, self.decide([each for _, each in part]), strict=True):
                if fate.is_new:
                    yield row


class BatchFilter:
    """For `mapInArrow`: batches with `HASH_COLUMN` in, and out what is new, or all with a status. Picklable.

    Args:
        handle: the run.
        status: emit all rows, with `STATUS_COLUMN`, instead of the new ones alone.
    """

    def __init__(self, handle: RunHandle, *, status: bool) -> None:
        """Connect in the call."""
        self._handle = handle
        self._status = status

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Filter one partition."""
        keys = KeyFilter(self._handle)
        for batch in batches:
            hashes = batch.column(HASH_COLUMN).to_pylist()
            payloads = _payloads(batch)
            fates = keys.decide(hashes, payloads)
            rest = batch.drop_columns([HASH_COLUMN, *([PAYLOAD_COLUMN] if payloads else [])])
            if self._status:
                status = pa.array([fate.status for fate in fates], pa.string())
                yield rest.append_column(STATUS_COLUMN, status)
            else:
                _refuse_changed(fates)
                yield rest.filter(pa.array([fate.is_new for fate in fates]))


def _refuse_changed(fates: Sequence[Fate]) -> None:
    changed = sum(fate.changed for fate in fates)
    if changed:
        raise FingerprintMismatchError(
            f"{changed} rows have the key of an earlier row and another payload: an update, or a key that is none. "
            'emit="status" marks them instead'
        )


def _payloads(batch: pa.RecordBatch) -> list[Any] | None:
    if PAYLOAD_COLUMN not in batch.schema.names:
        return None
    return [value.to_bytes(8, signed=True) for value in batch.column(PAYLOAD_COLUMN).to_pylist()]
