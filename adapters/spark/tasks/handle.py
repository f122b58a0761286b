"""RunHandle: what a closure takes to the executors, and nothing else of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.run_claims import OnConflict
from idempotent.adapters.spark.ledger.runs import RunRef
from idempotent.adapters.spark.tasks.chunks import checked_chunk
from idempotent.errors import ConfigurationError

if TYPE_CHECKING:
    from idempotent.adapters.spark.tasks.counters import Counters


@dataclass(frozen=True, slots=True)
class RunHandle:
    """A run, as plain data. Picklable.

    Attributes:
        store: where the ledger is. The password goes with it: keep it out of the URL and let the driver library find
            it on the executor, if the cluster's event log is not yours.
        ref: which run.
        epoch: how often it was begun or resumed.
        on_conflict: what to do about a key that a run holds which has not ended.
        wait_s: seconds to wait for such a run.
        lease_s: seconds that a pending claim is protected.
        chunk: keys in one round trip.
        counters: where rows are counted; None: nowhere (Spark Connect has no accumulators).
    """

    store: StoreConfig
    ref: RunRef
    epoch: int
    on_conflict: OnConflict
    wait_s: float
    lease_s: float
    chunk: int
    counters: Counters | None = None

    def with_chunk(self, chunk: int | None) -> RunHandle:
        """The same with another chunk; None: the same."""
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
