"""IdempotentRun: one unit of work, from begin to commit, on the driver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from idempotent.adapters.spark.deduplication import new_rows
from idempotent.adapters.spark.keys import Columns
from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.ledger import RunLedger
from idempotent.adapters.spark.ledger.run_claims import OnConflict
from idempotent.adapters.spark.ledger.runs import RunRow, RunState
from idempotent.adapters.spark.ledger.urls import open_ledger
from idempotent.adapters.spark.publication import Publication
from idempotent.adapters.spark.session import batch_number, new_counters, refuse_streaming
from idempotent.adapters.spark.staging import Output
from idempotent.adapters.spark.tasks.handle import RunHandle
from idempotent.checkers.repeating import RepeatingThread
from idempotent.errors import ConfigurationError, IdempotentError, RunFencedError, StoreError
from idempotent.logs import EventLog
from idempotent.processing.calling import finished
from idempotent.validation import choice, flag, seconds, whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = EventLog(__name__)

DEFAULT_CHUNK: Final = 1000
_TIMES_A_LEASE: Final = 3
# This process collects old claims in each store once an hour, so many at most.
_COLLECT_EVERY_S: Final = 3600.0
_COLLECT_MOST: Final = 10_000
_collect_at: Final[dict[StoreConfig, float]] = {}
_collect_lock: Final = threading.Lock()


class IdempotentRun:
    """A run that was begun or resumed. Use it in `with`, which closes its ledger at the end.

    The life of a run, the same after every crash, with the same `run_id`:

    1. `begin`, which waits until no other driver has the run;
    2. `stage(frame, folder)` evaluates the frame, which claims its keys, and writes its rows;
    3. `publish(function)` makes the staged rows visible, idempotently by `run_id`, and commits.

    One driver at a time has a run. One that was paused for longer than its lease, and whose run another has begun again
    meanwhile, gets a RunFencedError at its next step, and what it staged is never published.

    Guarantee (mode dedup): among the committed runs of a consumer each key is in the output of one; each input key of
    a committed run is in the output of exactly one committed run, rows put aside by `on_conflict="divert"` excepted.
    It holds as long as claims outlive the horizon of duplicates, the store loses nothing that it acknowledged, the
    publishing never deletes or replaces output, and every PREPARED run is begun again until it commits, or is
    aborted by a person who has checked that none of its output is published.

    Attributes:
        handle: what closures carry to the executors.
        ledger: the driver's ledger.
        output: what this attempt has staged and claimed.
        state: of the run, as this driver knows it.
        output_ref: where the output of a committed run is, if that was said.
    """

    def __init__(self, ledger: RunLedger, row: RunRow, handle: RunHandle) -> None:
        """Called by `begin`, which applications use."""
        self.ledger: Final = ledger
        self.handle: Final = handle
        self._attempt = f"{row.ref.token}-{row.prepared or row.ref.epoch}"
        self.output: Final = Output(row.ref, row.manifest)
        self._frames: dict[str, int] = {}
        self.state: RunState = row.state
        self.output_ref: str | None = row.output_ref
        # Last, and weakly held: neither a run that cannot be made nor one that was dropped renews its lease.
        self._renewals = RepeatingThread(self._renew, "idempotent-run-lease", handle.lease_s / _TIMES_A_LEASE)
        self._renewals.start()

    @classmethod
    def begin(
        cls,
        store: StoreConfig,
        *,
        consumer: str,
        run_id: str,
        fingerprint: bytes | None = None,
        on_conflict: OnConflict | Literal["wait", "fail", "divert"] = OnConflict.WAIT,
        wait_s: float = 600.0,
        lease_s: float = 300.0,
        chunk: int = DEFAULT_CHUNK,
        takeover: bool = False,
    ) -> Self:
        """Begin a run, or resume it where a crash left it. A thread renews its lease until `close`, which ends it.

        While another driver has the run this one waits, unless `on_conflict` is `fail`: after a SIGKILL for the rest of
        the lease.

        Args:
            store: where the ledger is. `idempotent.migrations.upgrade` makes its tables.
            consumer: claims the keys. Two consumers each process every key once.
            run_id: names the unit of work, never an attempt: a logical date, a batch number, a hash of the manifest.
            fingerprint: of the input, at most 64 bytes: a resumed run with another one is refused.
            on_conflict: what to do about a key of a run that has not ended: `wait`, `fail` or `divert`. Its row is
                never dropped, because that run may die.
            wait_s: seconds to wait for another driver of this run, for such a run, and for another attempt at the same
                key. It is one time for all tasks of this attempt and all tries of a task that wait for the same run.
            lease_s: seconds without a renewal after which another driver may go on with this run, other runs may abort
                it, unless it is PREPARED, and another attempt may take over a pending claim of an executor.
            chunk: keys in one round trip.
            takeover: fence the driver that has the run, instead of waiting for it.

        Raises:
            RunConflictError: another driver has the run, and this one does not wait, or has waited for `wait_s`.
            RunInputChangedError: the run was begun with another fingerprint.
            ConfigurationError: an unknown `on_conflict`, store or driver, or a duration or chunk out of range.
            StoreError: the store failed, or did not answer.
        """
        conflict = choice(OnConflict, on_conflict, "on_conflict")
        whole(chunk, "chunk")
        seconds(wait_s, "wait_s", zero=True)
        seconds(lease_s, "lease_s")
        flag(takeover, "takeover")
        ledger = open_ledger(store)
        try:
            row = ledger.begin(
                consumer,
                run_id,
                fingerprint=fingerprint,
                lease_s=lease_s,
                wait_s=0.0 if conflict is OnConflict.FAIL else wait_s,
                takeover=takeover,
            )
            handle = RunHandle(store, row.ref, conflict, wait_s, lease_s, chunk, new_counters(row.ref.token))
            return cls(ledger, row, handle)
        except BaseException:
            ledger.close()
            raise

    # What it is, and what this attempt has done

    @property
    def run_id(self) -> str:
        """The name of the unit of work."""
        return self.handle.ref.run_id

    @property
    def consumer(self) -> str:
        """The consumer that claims the keys."""
        return self.handle.ref.consumer

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
        """Rows by verdict, over all evaluations so far. Empty on Spark Connect, which has no accumulators.

        In the modes effect and replay new are the keys that were handled, and duplicate all other rows.
        """
        return self.handle.counters.values if self.handle.counters else {}

    def frame(self, name: str | None = None) -> RunHandle:
        """The handle for one frame. Of two frames of a run that share a key, one has its row.

        Args:
            name: frames of one name are the same frame, made again; None: a frame of its own.
        """
        number = self._frames.setdefault(name or f"\0{len(self._frames)}", len(self._frames))
        return replace(self.handle, frame=number, batch=batch_number())

    # Mode dedup

    def dedup(
        self,
        df: DataFrame,
        *,
        key: Columns,
        order_by: Columns = (),
        payload: Columns = (),
        emit: Literal["rows", "status"] = "rows",
        unique: bool = False,
        frame: str | None = None,
    ) -> DataFrame:
        """The rows whose keys are new to the consumer, one of each key; the same rows in every evaluation.

        Of two frames of a run that share a key, the one that claims it first has its row, and in the other it is a
        duplicate. Frames with equal plans are the same frame.

        Args:
            df: the frame, not a streaming one. Spark may evaluate it any number of times.
            key: one column or several: names, or expressions such as `F.col("order.id")` that give a row the same value
                in each evaluation. Texts, bytes, integers, decimals, booleans, dates and timestamps. A null fails the
                job.
            order_by: one column or several; the first row of a key by this order stays. Ties are broken by all columns.
            payload: one column or several, which duplicates of a key must have in common. A row with another payload
                fails the job, or has the status "changed".
            emit: `rows`: the new ones, with the frame's schema. `status`: one row of each key, with the column `_idem`
                that says new, duplicate, conflict or changed.
            unique: promises that the frame has one row of each key, which saves a shuffle. If it has more, all rows
                of a new key are emitted.
            frame: names the frame, in the place of its plan.

        Raises:
            ConfigurationError: a streaming frame, an unknown `emit`, a reserved or missing column, a key column whose
                values have several texts, or `rows` with `on_conflict="divert"`.
        """
        if emit not in ("rows", "status"):
            raise ConfigurationError(f"emit must be rows or status, not {emit!r}")
        refuse_streaming(df)
        return new_rows(
            df,
            # The plan, so that a call that is repeated after a failure makes the same frame.
            self.frame(frame or f"plan {df.semanticHash()}"),
            key=key,
            order_by=order_by,
            payload=payload,
            status=emit == "status",
            unique=unique,
        )

    def dedup_by(self, **options: Any) -> Callable[[DataFrame], DataFrame]:
        """`dedup` with these options, as a function of a frame: `df.transform(run.dedup_by(key="id"))`."""
        return partial(self.dedup, **options)

    def stage(self, df: DataFrame, folder: str, *, file_format: str = "parquet") -> DataFrame:
        """Evaluate a frame once, which claims its keys, and write its rows to a folder of this attempt's own.

        Once the run is PREPARED nothing is evaluated: the rows are those that the prepared attempt has staged.

        Args:
            df: what `dedup` returns, or what was made of it with one row for each of its rows.
            folder: a path that executors can write to, one for each frame. Each call writes to a new folder in it.
            file_format: of the files, as Spark names it.

        Returns:
            The staged rows, read from their files.

        Raises:
            ConfigurationError: the run is PREPARED or COMMITTED, and its attempt staged nothing in this folder.
            RunFencedError, RunInputChangedError, RunConflictError, StoreError: within Spark's exception, from its
            tasks.
        """
        if self.state is RunState.OPEN:
            self.output.stage(df, folder, file_format)
        return self.output.staged_in(folder).frame(df.sparkSession)

    def claim(self, df: DataFrame) -> None:
        """Make all claims of a frame that `dedup` returned: for a run whose claims are all its output.

        Once the run is PREPARED nothing is evaluated.
        """
        if self.state is RunState.OPEN:
            self.output.claim(df)

    # The end

    def publish(self, function: Callable[[Publication], object], *, rows: int | None = None) -> bool:
        """Publish the output, unless it is published already: `function` within `publishing`.

        Returns:
            Whether the function was called; False if the run was committed.

        Raises:
            ConfigurationError: the function returned a coroutine, a generator or the like, and so published nothing.
            Exception: as `publishing`, and what the function raises.
        """
        if self.is_committed:
            return False
        with self.publishing(rows=rows) as publication:
            finished(function(publication))
        return True

    @contextmanager
    def publishing(self, *, rows: int | None = None) -> Iterator[Publication]:
        """Publish the output: PREPARED at the beginning, COMMITTED at a clean end.

        All claims must have been made. The block must be idempotent, and delete and replace nothing: after a crash in
        it the run stays PREPARED and must be begun again, and a paused driver may still be in it then. For a
        publication that never succeeds see `abort`.

        Args:
            rows: how many rows are published, if they were neither staged by `stage` nor claimed by `claim`.

        Raises:
            UnpublishedClaimsError: the run has claimed more or fewer keys than rows are published.
            RunFencedError: another driver took the run over, or another run aborted it, because its lease had ended.
            ClaimsExpiredError: the run took so long that the store may have forgotten claims.
            ConfigurationError: the run is committed.
            StoreError: the store failed, or did not answer: begin the run again.
        """
        ref = self.handle.ref
        if self.is_committed:
            raise ConfigurationError(
                f"{ref} is COMMITTED, and its output is published: look at is_committed first, or use publish(), which "
                "skips such a run"
            )
        self.ledger.prepare(
            ref,
            rows=self.output.rows if rows is None else rows,
            manifest=self.output.manifest,
            elsewhere=self.output.elsewhere,
        )
        self.state = RunState.PREPARED
        staged = self.output.staged
        publication = Publication(
            ref.run_id, ref.generation, self._attempt, staged, self.output_ref, handle=self.handle
        )
        try:
            yield publication
        except Exception as error:
            error.add_note(
                f"{ref} stays PREPARED, and may be published in part. Mend what failed, and begin it again: it "
                "publishes the same staged rows"
            )
            raise
        self.ledger.commit(ref, publication.output_ref)
        self.state, self.output_ref = RunState.COMMITTED, publication.output_ref

    def abort(self, *, unpublished: bool = False) -> None:
        """Abort the run, and free its claims. The next `begin` makes a new generation, which evaluates its input.

        Args:
            unpublished: abort a PREPARED run too. Check before that none of its output is published, delete output
                that is, and make sure that no driver of it is alive, a paused one either: else rows are published
                twice.

        Raises:
            RunFencedError: the run is COMMITTED, or PREPARED without `unpublished`, so it may have published, or
                another driver has taken it over.
            ConfigurationError: `unpublished` is no bool.
            StoreError: the store failed, or did not answer.
        """
        self.ledger.abort(self.handle.ref, unpublished=flag(unpublished, "unpublished"))
        self.state = RunState.ABORTED

    def close(self) -> None:
        """End the lease, so that the next driver need not wait, and close the connection. The run keeps its state."""
        self._renewals.stop(None)
        # If the store does not answer, the lease ends in time.
        with suppress(StoreError):
            self.ledger.end_lease(self.handle.ref)
        if self.handle.counters is not None:
            self.handle.counters.free()
        if self.is_committed:
            collect(self.ledger, self.handle.store)
        self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _renew(self) -> bool:
        """Renew the run's lease. False: another driver has the run."""
        try:
            self.ledger.renew(self.handle.ref, self.handle.lease_s)
        except IdempotentError as error:
            # A driver that was fenced meanwhile learns it at its next step.
            log.warning("run_not_renewed", extra={"run": str(self.handle.ref), "error": str(error)})
            return not isinstance(error, RunFencedError)
        return True


def collect(ledger: RunLedger, store: StoreConfig) -> None:
    """Collect a bounded number of claims, unless this process has collected in this store within the hour."""
    now = time.monotonic()
    with _collect_lock:
        if now < _collect_at.get(store, now):
            return
        _collect_at[store] = now + _COLLECT_EVERY_S
    try:
        done = ledger.collect(_COLLECT_MOST)
    except StoreError as error:
        # What is no longer needed only takes disk space.
        log.warning("run_claims_not_collected", extra={"error": str(error)})
    else:
        if any(done):
            about = {"deleted": done.claims, "runs": done.runs, "aborted": done.aborted}
            log.info("run_claims_collected", extra=about)
