"""IdempotentRun: one unit of work, from begin to commit, on the driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self

from idempotent.adapters.spark.columns import STATUS_COLUMN, names_of, refuse_reserved
from idempotent.adapters.spark.deduplication import one_per_key, with_payload
from idempotent.adapters.spark.keys import with_hash
from idempotent.adapters.spark.ledger.base import Ledger
from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.run_claims import OnConflict
from idempotent.adapters.spark.ledger.runs import RunRow, RunState
from idempotent.adapters.spark.ledger.urls import open_ledger
from idempotent.adapters.spark.publication import Publication
from idempotent.adapters.spark.run_lease import RunLease
from idempotent.adapters.spark.session import new_counters
from idempotent.adapters.spark.tasks.chunks import checked_chunk
from idempotent.adapters.spark.tasks.filters import BatchFilter
from idempotent.adapters.spark.tasks.handle import RunHandle, refuse_divert
from idempotent.choices import choice
from idempotent.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DEFAULT_CHUNK: Final = 1000


class IdempotentRun:
    """A run that was begun or resumed. Use it in `with`, which closes its ledger at the end.

    The life of a run, the same after every crash, with the same `run_id`:

    1. `begin`;
    2. an action over all its rows claims their keys: a write to a staging folder, or `claim(frame)`;
    3. `with run.publishing():` makes the output visible, idempotently by `run_id`. Its clean end commits.

    Guarantee (mode dedup): among the committed runs of a consumer each key is in the output of one; each input key of
    a committed run is in the output of exactly one committed run, rows put aside by `on_conflict="divert"` excepted.
    It holds as long as claims outlive the horizon of duplicates, the store loses nothing that it acknowledged, the
    same `run_id` means the same input, and every PREPARED run is begun again until it commits.
    """

    def __init__(self, ledger: Ledger, row: RunRow, handle: RunHandle, lease: RunLease) -> None:
        """Called by `begin`, which applications use."""
        self._ledger = ledger
        self._handle = handle
        self._lease = lease
        self.state: RunState = row.state
        self.output_ref: str | None = row.output_ref

    @classmethod
    def begin(
        cls,
        store: StoreConfig,
        *,
        consumer: str,
        run_id: str,
        fingerprint: bytes | None = None,
        on_conflict: OnConflict | str = OnConflict.WAIT,
        wait_s: float = 600.0,
        lease_s: float = 300.0,
        chunk: int = DEFAULT_CHUNK,
    ) -> Self:
        """Begin a run, or resume it where a crash left it. A thread renews its lease until `close`.

        Args:
            store: where the ledger is. `idempotent.migrations.upgrade` makes its tables.
            consumer: claims the keys. Two consumers each process every key once.
            run_id: names the unit of work, never an attempt: a logical date, a batch number, a hash of the manifest.
            fingerprint: of the input, at most 64 bytes: a resumed run with another one is refused.
            on_conflict: what to do about a key of a run that has not ended: `wait`, `fail` or `divert`. Its row is
                never dropped, because that run may die.
            wait_s: seconds to wait for such a run, and for another attempt at the same key.
            lease_s: seconds without a renewal after which other runs may abort this one, unless it is PREPARED, and
                after which another attempt may take over a pending claim of an executor.
            chunk: keys in one round trip.

        Raises:
            RunInputChangedError: the run was begun with another fingerprint.
            ConfigurationError: an unknown `on_conflict`, store or driver, or a duration or chunk out of range.
            StoreError: the store failed, or did not answer.
        """
        conflict = choice(OnConflict, on_conflict, "on_conflict")
        checked_chunk(chunk)
        ledger = open_ledger(store)
        try:
            row = ledger.begin(consumer, run_id, fingerprint=fingerprint, lease_s=lease_s)
            handle = RunHandle(store, row.ref, row.epoch, conflict, wait_s, lease_s, chunk, new_counters())
            lease = RunLease(ledger, row.ref, lease_s)
        except BaseException:
            ledger.close()
            raise
        return cls(ledger, row, handle, lease)

    # Properties

    @property
    def handle(self) -> RunHandle:
        """What closures carry to the executors."""
        return self._handle

    @property
    def ledger(self) -> Ledger:
        """The driver's ledger."""
        return self._ledger

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

    # Mode dedup

    def dedup(
        self,
        df: DataFrame,
        *,
        key: str | Sequence[str],
        order_by: Sequence[str | Column] = (),
        payload: Sequence[str] = (),
        emit: Literal["rows", "status"] = "rows",
        unique: bool = False,
    ) -> DataFrame:
        """The rows whose keys are new to the consumer, one of each key; the same rows in every evaluation.

        Args:
            df: the frame. Spark may evaluate it any number of times.
            key: columns of texts, integers, dates or bytes. A null fails the job.
            order_by: the first row of a key by this order stays. Ties are broken by all columns.
            payload: columns that duplicates of a key must have in common. A row with another payload fails the job,
                or has the status "changed".
            emit: `rows`: the new ones, with the frame's schema. `status`: one row of each key, with the column `_idem`
                that says new, duplicate, conflict or changed.
            unique: promises that the frame has one row of each key, which saves a shuffle. If it has more, all rows
                of a new key are emitted.

        Raises:
            ConfigurationError: an unknown `emit`, a reserved or missing column, a key column whose values have several
                texts, or `rows` with `on_conflict="divert"`.
        """
        from pyspark.sql.types import StringType, StructField, StructType

        if emit not in ("rows", "status"):
            raise ConfigurationError(f"emit must be rows or status, not {emit!r}")
        if emit == "rows":
            refuse_divert(self._handle)
        refuse_reserved(df.columns)
        schema = df.schema
        frame = with_hash(df, self.consumer, names_of(key))
        if payload:
            frame = with_payload(frame, payload)
        if not unique:
            frame = one_per_key(frame, order_by)
        if emit == "status":
            schema = StructType([*schema.fields, StructField(STATUS_COLUMN, StringType(), nullable=False)])
        return frame.mapInArrow(BatchFilter(self._handle, status=emit == "status"), schema)

    def claim(self, df: DataFrame) -> None:
        """Make all claims of a frame: evaluate it once, and keep no rows."""
        df.write.format("noop").mode("overwrite").save()

    # The end

    @contextmanager
    def publishing(self) -> Iterator[Publication]:
        """Publish the output: PREPARED at the beginning, COMMITTED at a clean end.

        All claims must have been made. The block must be idempotent by `run_id`: after a crash in it the run stays
        PREPARED, cannot be aborted, and must be begun again. In a run that is already committed the block runs too.

        Raises:
            RunFencedError: another run aborted this one, because its lease had ended.
            ClaimsExpiredError: the run took so long that the store may have forgotten claims.
            StoreError: the store failed, or did not answer: begin the run again.
        """
        ref = self._handle.ref
        self._ledger.prepare(ref)
        if not self.is_committed:
            self.state = RunState.PREPARED
        publication = Publication(ref.run_id, ref.generation, self.output_ref)
        yield publication
        self._ledger.commit(ref, publication.output_ref)
        self.state, self.output_ref = RunState.COMMITTED, publication.output_ref

    def abort(self) -> None:
        """Abort the run, and free its claims. The next `begin` makes a new generation.

        Raises:
            RunFencedError: the run is PREPARED or COMMITTED, so it may have published.
            StoreError: the store failed, or did not answer.
        """
        self._ledger.abort(self._handle.ref)
        self.state = RunState.ABORTED

    def close(self) -> None:
        """Stop renewing the lease, and close the connection. The run keeps its state."""
        self._lease.stop()
        self._ledger.close()

    def __enter__(self) -> Self:
        """The run itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()
