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
    """A run that was begun or resumed. Use it in `with`: that keeps its lease alive and closes the ledger.

    The life of a run, the same after every crash, with the same `run_id`:

    1. `begin`;
    2. an action over all its rows claims their keys: a write to a staging place, or `claim(frame)`;
    3. `with run.publishing():` makes the output visible, idempotently by `run_id`. Its clean end commits.

    Guarantee (mode dedup): among the committed runs of a consumer each key is in the output of one; each input key of
    a committed run is in the output of exactly one committed run, rows put aside by `on_conflict="divert"` excepted.
    It holds as long as claims outlive the horizon of duplicates, the store loses nothing that it acknowledged, the
    same `run_id` means the same input, and every PREPARED run is begun again until it commits.
    """

    def __init__(self, ledger: Ledger, row: RunRow, handle: RunHandle, lease: RunLease) -> None:
        """Use `begin`."""
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
        """Begin a run, or resume it where a crash left it.

        Args:
            store: where the ledger is. Its tables are made by `idempotent.migrations.upgrade`.
            consumer: whose keys are claimed. Two consumers each process every key once.
            run_id: names the unit of work, never an attempt: a logical date, a batch number, a hash of the manifest.
            fingerprint: of the input, at most 64 bytes: a resumed run with another one is refused.
            on_conflict: what to do about a key of a run that has not ended: `wait`, `fail` or `divert`. It is never
                dropped: that run may die.
            wait_s: seconds to wait for such runs and attempts.
            lease_s: seconds without a sign of this driver after which others may abort the run, unless it is PREPARED;
                and after which a pending claim of an executor may be taken over.
            chunk: keys in one round trip.

        Raises:
            RunInputChangedError: it was begun with another fingerprint.
            ConfigurationError: arguments that cannot work.
            StoreError: the store did not do its part.
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

    # What is known

    @property
    def handle(self) -> RunHandle:
        """What closures take to the executors."""
        return self._handle

    @property
    def ledger(self) -> Ledger:
        """The driver's own."""
        return self._ledger

    @property
    def run_id(self) -> str:
        """As given."""
        return self._handle.ref.run_id

    @property
    def consumer(self) -> str:
        """As given."""
        return self._handle.ref.consumer

    @property
    def is_committed(self) -> bool:
        """Whether nothing is left to do."""
        return self.state is RunState.COMMITTED

    @property
    def is_prepared(self) -> bool:
        """Whether all claims were made before, by a driver that died while it published."""
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
            df: the frame; lazily evaluated, as often as Spark likes.
            key: columns of texts, integers, dates or bytes. A null fails the job.
            order_by: which row of a key stays: the first. Ties are broken by all columns.
            payload: columns that duplicates of a key must have in common. A row with another payload fails the job,
                or has the status "changed".
            emit: `rows`: the new ones, with the frame's schema. `status`: one row of each key, with the column `_idem`
                that says new, duplicate, conflict or changed.
            unique: no key is in the frame twice, which saves a shuffle. If that is wrong, all rows of a key are
                emitted.

        Raises:
            ConfigurationError: arguments that cannot work.
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
        """Make all claims of a frame, by evaluating it once and keeping nothing."""
        df.write.format("noop").mode("overwrite").save()

    # The end

    @contextmanager
    def publishing(self) -> Iterator[Publication]:
        """Publish the output: PREPARED at the beginning, COMMITTED at a clean end.

        All claims must have been made. What the block does must be idempotent by `run_id`; after a crash in it the run
        stays PREPARED, nobody can abort it, and it must be begun again. In a run that is committed already the block
        runs too, and has nothing to do.

        Raises:
            RunFencedError: the run was aborted by others, because its lease had ended.
            ClaimsExpiredError: it took so long that the store may have forgotten claims.
            StoreError: the store did not do its part; begin the run again.
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
        """Give the run and its claims up. The next `begin` makes a new generation.

        Raises:
            RunFencedError: it is PREPARED or COMMITTED: it may have published.
            StoreError: the store did not do its part.
        """
        self._ledger.abort(self._handle.ref)
        self.state = RunState.ABORTED

    def close(self) -> None:
        """Stop renewing the lease, and close the connection. The run stays as it is."""
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
