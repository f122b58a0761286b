"""RunHandle: the part of a run that a closure carries to the executors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.run_claims import OnConflict
from idempotent.adapters.spark.ledger.runs import RunRef
from idempotent.adapters.spark.tasks.chunks import checked_chunk
from idempotent.errors import ConfigurationError

BATCH_PROPERTY: Final = "streaming.sql.batchId"
"""Spark's local property with the number of a micro-batch, in its driver's thread and in its tasks."""

if TYPE_CHECKING:
    from idempotent.adapters.spark.tasks.counters import Counters


@dataclass(frozen=True, slots=True)
class RunHandle:
    """A run, as plain data. Picklable.

    Attributes:
        store: where the ledger is, password included. If others read the cluster's event log, leave the password out
            of the URL and let the driver library find it on the executor.
        ref: the run and its attempt.
        on_conflict: what to do about a key that a run holds which has not ended.
        wait_s: seconds to wait for such a run, and for another attempt at a key.
        lease_s: seconds that a pending claim is protected.
        chunk: keys in one round trip.
        counters: counts rows; None on Spark Connect, which has no accumulators.
        frame: the number of the frame, among those of the run.
        batch: of the stream for which the frame was made, as Spark numbers it; None outside of a stream.
    """

    store: StoreConfig
    ref: RunRef
    on_conflict: OnConflict
    wait_s: float
    lease_s: float
    chunk: int
    counters: Counters | None = None
    frame: int = 0
    batch: str | None = None

    def with_chunk(self, chunk: int | None) -> RunHandle:
        """The handle with another chunk; None keeps the present one."""
        return self if chunk is None else replace(self, chunk=checked_chunk(chunk))


def refuse_divert(handle: RunHandle) -> RunHandle:
    """The handle, for a filter that emits new rows only.

    Raises:
        ConfigurationError: the run puts rows aside, and such a filter would lose them.
    """
    if handle.on_conflict is OnConflict.DIVERT:
        raise ConfigurationError(
            'on_conflict="divert" needs run.dedup(..., emit="status"), whose rows say "conflict": '
            "here a row that is put aside would be lost"
        )
    return handle
