"""RunFacts: what a run is, and what this attempt has done, on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from idempotent.adapters.spark.ledger.ledger import RunLedger
from idempotent.adapters.spark.ledger.runs import RunRow, RunState
from idempotent.adapters.spark.run_lease import RunLease
from idempotent.adapters.spark.session import batch_number
from idempotent.adapters.spark.staging import Output
from idempotent.adapters.spark.tasks.handle import RunHandle


class RunFacts:
    """The part of `IdempotentRun` that changes nothing in the store."""

    def __init__(self, ledger: RunLedger, row: RunRow, handle: RunHandle, lease: RunLease) -> None:
        """Called by `begin`, which applications use."""
        self._ledger = ledger
        self._handle = handle
        self._lease = lease
        self._attempt = f"{row.ref.token}-{row.prepared or row.ref.epoch}"
        self._output = Output(row.ref, row.manifest)
        self._frames: dict[str, int] = {}
        self.state: RunState = row.state
        self.output_ref: str | None = row.output_ref

    @property
    def handle(self) -> RunHandle:
        """What closures carry to the executors."""
        return self._handle

    @property
    def ledger(self) -> RunLedger:
        """The driver's ledger."""
        return self._ledger

    @property
    def output(self) -> Output:
        """What this attempt has staged and claimed."""
        return self._output

    @property
    def run_id(self) -> str:
        """The name of the unit of work."""
        return self._handle.ref.run_id

    @property
    def consumer(self) -> str:
        """The consumer that claims the keys."""
        return self._handle.ref.consumer

    @property
    def is_committed(self) -> bool:
        """Whether the run has ended with its output published."""
        return self.state is RunState.COMMITTED

    @property
    def is_prepared(self) -> bool:
        """Whether all claims are made, and a driver may have begun to publish."""
        return self.state is RunState.PREPARED

    @property
    def counts(self) -> Mapping[str, int]:
        """Rows by verdict, over all evaluations so far. Empty on Spark Connect, which has no accumulators."""
        return self._handle.counters.values if self._handle.counters else {}

    def frame(self, name: str | None = None) -> RunHandle:
        """The handle for one frame. Of two frames of a run that share a key, one has its row.

        Args:
            name: frames of one name are the same frame, made again; None: a frame of its own.
        """
        number = self._frames.setdefault(name or f"\0{len(self._frames)}", len(self._frames))
        return replace(self._handle, frame=number, batch=batch_number())
