"""RunHandle: the part of a run that a closure carries to the executors, and the counters that it brings back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.run_claims import OnConflict, RowVerdict
from idempotent.adapters.spark.ledger.runs import RunRef
from idempotent.errors import ConfigurationError
from idempotent.processing.calling import finished
from idempotent.validation import whole

BATCH_PROPERTY: Final = "streaming.sql.batchId"
"""Spark's local property with the number of a micro-batch, in its driver's thread and in its tasks."""

T = TypeVar("T")
Numbers: TypeAlias = Counter[tuple[int, str]]


class Sums:
    """How Spark adds up an accumulator: numbers by run and verdict. In the place of an AccumulatorParam."""

    def zero(self, _value: object) -> Numbers:
        """Nothing counted."""
        return Counter()

    def addInPlace(self, one: Numbers, other: Numbers) -> Numbers:  # noqa: N802 - Spark's name
        """The sums, in `one`."""
        one.update(other)
        return one


class Counters:
    """Rows by verdict. A row counts once in each evaluation, and not in a task that failed.

    Args:
        accumulator: of the SparkContext, for all its runs.
        token: of the run.
    """

    def __init__(self, accumulator: Any, token: int) -> None:
        self._accumulator = accumulator
        self._names = {verdict: (token, verdict.value) for verdict in RowVerdict}

    def add(self, verdicts: Mapping[RowVerdict, int]) -> None:
        """Count rows, on an executor."""
        self._accumulator.add(Counter({self._names[verdict]: count for verdict, count in verdicts.items()}))

    @property
    def values(self) -> dict[str, int]:
        """Rows by verdict, on the driver."""
        return {name[1]: self._accumulator.value.get(name, 0) for name in self._names.values()}

    def free(self) -> None:
        """Forget the run's numbers, on the driver."""
        for name in self._names.values():
            self._accumulator.value.pop(name, None)


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
        batch_size: the most rows that a handler takes, in a list; None: it takes one row.
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
    batch_size: int | None = None

    def sized(self, chunk: int | None, batch_size: int | None = None) -> RunHandle:
        """The handle with these sizes; None for the chunk: the present one, or `batch_size` if that is more.

        Raises:
            ConfigurationError: a size is not a whole number from 1.
        """
        size = None if batch_size is None else whole(batch_size, "batch_size")
        chunk = max(self.chunk, size or 1) if chunk is None else whole(chunk, "chunk")
        return replace(self, batch_size=size, chunk=chunk)

    def call(self, handler: Callable[..., Any], rows: Sequence[Any], *connection: Any) -> Any:
        """What a handler returns for a batch, if it takes batches; else a list of what it returns for the one row.

        Raises:
            ConfigurationError: the handler returned a coroutine, a generator or the like, and so did no work.
        """
        returned = finished(handler(rows if self.batch_size else rows[0], *connection))
        return returned if self.batch_size else [returned]

    def chunks(self, rows: Iterable[T]) -> Iterator[list[T]]:
        """The rows in lists of one round trip each, in order; the last may be shorter."""
        source = iter(rows)
        while part := list(islice(source, self.chunk)):
            yield part


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
