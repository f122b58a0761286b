"""Mode dedup: the functions that Spark calls with the rows of a partition, and that let new rows through."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

import pyarrow as pa

from idempotent.adapters.spark.keys import HASH_COLUMN, PAYLOAD_COLUMN, STATUS_COLUMN
from idempotent.adapters.spark.ledger.run_claims import KeyDecision, RowVerdict, RunClaims
from idempotent.adapters.spark.tasks.handle import RunHandle, refuse_divert
from idempotent.adapters.spark.tasks.ledgers import claims_for
from idempotent.adapters.spark.tasks.row_keys import RowKeys
from idempotent.errors import FingerprintMismatchError

T = TypeVar("T")
_CHANGED: Final = "changed"


class KeyFilter:
    """The verdicts of one partition's keys.

    Args:
        handle: the run.
    """

    def __init__(self, handle: RunHandle) -> None:
        """Check that the store knows the run."""
        self._claims: RunClaims = claims_for(handle)
        self._handle = handle

    def decide(self, hashes: Sequence[bytes]) -> list[RowVerdict]:
        """The verdicts of rows, aligned. Several rows may have the same key.

        Raises:
            RunError, StoreError: see RunClaims.
        """
        different: Sequence[bytes] = list(dict.fromkeys(hashes))
        verdicts: list[RowVerdict] = []
        for part in self._handle.chunks(different):
            verdicts += self._claims.decide(part)
        if len(different) < len(hashes):
            of_key = dict(zip(different, verdicts, strict=True))
            verdicts = [of_key[each] for each in hashes]
        self._count(verdicts)
        return verdicts

    def compare(
        self, hashes: Sequence[bytes], payloads: Sequence[bytes]
    ) -> tuple[list[RowVerdict], list[bool]]:
        """As `decide`, and for each row whether its payload differs from the one that its key was claimed with.

        Raises:
            RunError, StoreError: see RunClaims.
        """
        # A key is claimed with the payload of its first row.
        marks = dict(zip(reversed(hashes), reversed(payloads), strict=True))
        decided: dict[bytes, KeyDecision] = {}
        for part in self._handle.chunks(dict.fromkeys(hashes)):
            decisions = self._claims.decide_each(part, [marks[key_hash] for key_hash in part])
            decided.update(zip(part, decisions, strict=True))
        verdicts = [decided[each].verdict for each in hashes]
        changed = [
            decided[key_hash].other_payload or payload != marks[key_hash]
            for key_hash, payload in zip(hashes, payloads, strict=True)
        ]
        self._count(verdicts)
        return verdicts, changed

    def _count(self, verdicts: Sequence[RowVerdict]) -> None:
        if self._handle.counters is not None:
            # Not a Counter: hashing an enum member takes longer than the rest of the work for a row.
            self._handle.counters.add({each: verdicts.count(each) for each in RowVerdict})


class PartitionFilter:
    """For `rdd.mapPartitions`: the new rows. Picklable."""

    def __init__(self, handle: RunHandle, keys: RowKeys) -> None:
        """Connect only when called."""
        self._handle = refuse_divert(handle)
        self._keys = keys

    def __call__(self, rows: Iterable[T]) -> Iterator[T]:
        """The new rows of one partition, lazily."""
        keys = KeyFilter(self._handle)
        for part in self._handle.chunks(rows):
            verdicts = keys.decide(list(map(self._keys.of_row, part)))
            yield from (row for row, verdict in zip(part, verdicts, strict=True) if verdict is RowVerdict.NEW)


class BatchFilter:
    """For `mapInArrow`: the new rows of batches, or all rows with a status. Picklable.

    Arrow filters whole batches: Python code that runs for each row is many times slower.

    Args:
        handle: the run.
        keys: finds the key hashes; None: the batches have them, in `HASH_COLUMN`.
        status: emit all rows with `STATUS_COLUMN` instead of the new rows only.
    """

    def __init__(self, handle: RunHandle, keys: RowKeys | None = None, *, status: bool = False) -> None:
        """Connect only when called."""
        self._handle = handle if status else refuse_divert(handle)
        self._keys = keys
        self._status = status

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Filter one partition."""
        keys = KeyFilter(self._handle)
        for batch in batches:
            if self._keys is not None:
                yield only_new(batch, keys.decide(self._keys.of_batch(batch)))
                continue
            hashes = batch.column(HASH_COLUMN).to_pylist()
            rest = batch.drop_columns([HASH_COLUMN])
            changed: Sequence[bool] = ()
            if PAYLOAD_COLUMN in batch.schema.names:
                rest = rest.drop_columns([PAYLOAD_COLUMN])
                payloads = batch.column(PAYLOAD_COLUMN).to_pylist()
                verdicts, changed = keys.compare(hashes, [each.to_bytes(8, signed=True) for each in payloads])
            else:
                verdicts = keys.decide(hashes)
            if self._status:
                yield rest.append_column(STATUS_COLUMN, statuses(verdicts, changed))
            else:
                _refuse_changed(changed)
                yield only_new(rest, verdicts)


def only_new(batch: pa.RecordBatch, verdicts: Sequence[RowVerdict]) -> pa.RecordBatch:
    """The rows with the verdict NEW; the batch itself, not copied, when all rows have it."""
    new = RowVerdict.NEW  # looking up an enum member costs as much as the rest of the work for a row
    if verdicts.count(new) == len(verdicts):
        return batch
    return batch.filter(pa.array([verdict is new for verdict in verdicts]))


def statuses(verdicts: Sequence[RowVerdict], changed: Sequence[bool] = ()) -> pa.Array:
    """The texts for `STATUS_COLUMN`."""
    texts = [verdict.value for verdict in verdicts]
    for at, is_changed in enumerate(changed):
        if is_changed:
            texts[at] = _CHANGED
    return pa.array(texts, pa.string())


def _refuse_changed(changed: Sequence[bool]) -> None:
    count = sum(changed)
    if count:
        raise FingerprintMismatchError(
            f"{count} rows have the key of an earlier row and another payload: they are updates, or the key does "
            'not identify a row. emit="status" marks them instead'
        )
