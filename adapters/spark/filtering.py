"""BatchFilter: mode dedup over Arrow batches, with nothing done row by row that Arrow can do at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from idempotent.adapters.spark.keys import HASH_COLUMN
from idempotent.adapters.spark.ledger.claims import Verdict
from idempotent.adapters.spark.tasks.batches import gathered
from idempotent.adapters.spark.tasks.deciding import KeyFilter
from idempotent.adapters.spark.tasks.handle import RunHandle
from idempotent.errors import FingerprintMismatchError

STATUS_COLUMN: Final = "_idem"
"""The column of `emit="status"`."""
PAYLOAD_COLUMN: Final = "_idem_payload"
"""The column that carries fingerprints between Spark's stages."""

_CHANGED: Final = "changed"


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
        for batch in gathered(batches, keys.chunk):
            hashes = batch.column(HASH_COLUMN).to_pylist()
            rest = batch.drop_columns([HASH_COLUMN])
            changed: Sequence[bool] = ()
            if PAYLOAD_COLUMN in batch.schema.names:
                rest = rest.drop_columns([PAYLOAD_COLUMN])
                verdicts, changed = keys.compare(hashes, _payloads(batch))
            else:
                verdicts = keys.decide(hashes)
            if self._status:
                yield rest.append_column(STATUS_COLUMN, statuses(verdicts, changed))
            else:
                _refuse_changed(changed)
                yield only_new(rest, verdicts)


def only_new(batch: pa.RecordBatch, verdicts: Sequence[Verdict]) -> pa.RecordBatch:
    """The rows with this verdict; the batch itself, not copied, when these are all."""
    new = Verdict.NEW  # to look it up costs as much as all the rest of a row
    if verdicts.count(new) == len(verdicts):
        return batch
    return batch.filter(pa.array([verdict is new for verdict in verdicts]))


def statuses(verdicts: Sequence[Verdict], changed: Sequence[bool] = ()) -> pa.Array:
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
            f"{count} rows have the key of an earlier row and another payload: an update, or a key that is none. "
            'emit="status" marks them instead'
        )


def _payloads(batch: pa.RecordBatch) -> list[bytes]:
    return [value.to_bytes(8, signed=True) for value in batch.column(PAYLOAD_COLUMN).to_pylist()]
