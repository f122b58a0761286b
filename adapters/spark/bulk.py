"""bulk_dedup: an anti-join against the keys of committed runs in Parquet, for more keys than a store can hold."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from idempotent.adapters.spark.deduplication import one_per_key
from idempotent.adapters.spark.keys import HASH_COLUMN, Columns, key_hash, with_hash
from idempotent.adapters.spark.ledger.ledger import RunLedger
from idempotent.adapters.spark.ledger.refusals import command, require_open
from idempotent.adapters.spark.ledger.run_claims import OnConflict
from idempotent.adapters.spark.ledger.runs import RunState
from idempotent.adapters.spark.run import IdempotentRun
from idempotent.adapters.spark.session import refuse_streaming
from idempotent.adapters.spark.tasks.handle import RunHandle
from idempotent.errors import RunConflictError, StoreReplacedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RUN: Final = "run"
_EPOCH: Final = "epoch"
_FRAME: Final = "frame"
_POLL_S: Final = 0.5


def bulk_dedup(
    df: DataFrame,
    *,
    claims: str,
    key: Columns,
    run: IdempotentRun,
    order_by: Columns = (),
    unique: bool = False,
) -> DataFrame:
    """The rows whose keys are in no committed run of the consumer, one of each key; the same in every evaluation.

    The keys are kept in Parquet, some 22 bytes each and in a folder for each run, instead of one by one in a store. A
    run counts when the ledger says that it is committed. As an anti-join sees a snapshot, runs of a consumer take
    turns: this call waits until no other run is between its `bulk_dedup` and its end, or fails, as the run's
    `on_conflict` says.

    It writes the keys of the new rows to a folder of this attempt's own, which evaluates the frame once; use
    `run.stage` and `run.publish` afterwards. Of two frames of a run that share a key, the first has its row.
    Guarantee: see `IdempotentRun`.

    Args:
        df: the frame.
        claims: folder of this consumer's keys, shared with no other consumer; created if missing.
        key: one column or several, see `IdempotentRun.dedup`.
        run: the unit of work.
        order_by: which row of a key stays, see `IdempotentRun.dedup`.
        unique: promises that the frame has one row of each key.

    Raises:
        RunConflictError: another run has the turn, and this one does not wait, or has waited for `wait_s`.
        StoreReplacedError: the folder has keys of a run that the ledger does not know: older than its retention, or of
            another ledger. Move the run's folder away, or use its ledger.
        RunFencedError, StoreError: see `IdempotentRun`.
    """
    refuse_streaming(df)
    is_open = run.state is RunState.OPEN
    if is_open:
        _take_turn(run.ledger, run.handle)
        run.output.has_turn = True
    spark = df.sparkSession
    frame = with_hash(df, run.consumer, key)
    if not unique:
        frame = one_per_key(frame, order_by)
    known = _committed_keys(spark, claims, run)
    if known is not None:
        frame = frame.join(known, HASH_COLUMN, "left_anti")
    if is_open:
        handle = run.frame()
        # Never over what is there: an earlier attempt may still be writing, and its keys do not count.
        own = f"{claims.rstrip('/')}/{_RUN}={handle.ref.token}/{_EPOCH}={handle.ref.epoch}/{_FRAME}={handle.frame}"
        frame.select(HASH_COLUMN).write.mode("error").parquet(own)
        run.output.bulk_rows += spark.read.schema(f"`{HASH_COLUMN}` binary").parquet(own).count()
    return frame.drop(HASH_COLUMN)


def _committed_keys(spark: SparkSession, claims: str, run: IdempotentRun) -> DataFrame | None:
    """The keys of the other committed runs, and of this attempt's frames before; None if there are no keys yet."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    try:
        # A given schema: a folder that holds only what a killed run began to write has none to infer.
        columns = f"`{HASH_COLUMN}` binary, `{_RUN}` bigint, `{_EPOCH}` int, `{_FRAME}` int"
        table = spark.read.schema(columns).parquet(claims)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None
    tokens = {row[_RUN] for row in table.select(_RUN).distinct().collect()}
    ref = run.handle.ref
    tokens.discard(ref.token)
    runs = run.ledger.rows(tokens)
    unknown = [token for token, each in runs.items() if each.state is RunState.UNKNOWN]
    if unknown:
        raise StoreReplacedError(
            f"{run.handle.store.where} does not know {len(unknown)} runs whose keys are in {claims}, for example "
            f"{_RUN}={unknown[0]}: they are older than the ledger's retention, or of another ledger. "
            "Move their folders away, or use their ledger"
        )
    counted = [f"{token}-{each.prepared}" for token, each in runs.items() if each.state is RunState.COMMITTED]
    if run.state is RunState.OPEN:
        counted.append(f"{ref.token}-{ref.epoch}")
    attempt = F.concat_ws("-", F.col(_RUN), F.col(_EPOCH))
    # The list of files is of now: frames of this attempt that are made later are not in it.
    return table.where(attempt.isin(counted)).select(HASH_COLUMN)


def _take_turn(ledger: RunLedger, handle: RunHandle) -> None:
    """Wait until this attempt owns the consumer's turn: a claim that passes on once its owner has ended."""
    ref, turn = handle.ref, key_hash(f"{handle.ref.consumer}\0bulk_dedup", ["turn"])
    patience = ledger.patience(handle.wait_s if handle.on_conflict is OnConflict.WAIT else 0.0)
    while True:
        (owner,) = ledger.claim(ref, [turn])
        if owner is None:
            # The store claims for OPEN runs only, so this one has ended.
            require_open(ref, ledger.row(ref.token), ledger.store.where)
            continue
        if (owner.token, owner.mark) == (ref.token, ref.epoch):
            return
        other = ledger.row(owner.token)
        if owner.token == ref.token or other.state.is_final:
            if not ledger.steal(ref, owner, [turn]):
                require_open(ref, ledger.row(ref.token), ledger.store.where)
            continue
        if ledger.abort_other(owner.token, other, ref):
            continue
        if not patience.wait(ref, partial("the turn of its consumer, which has {}".format, other), _POLL_S):
            raise RunConflictError(
                f"another run of consumer {ref.consumer!r} has the turn: {other}. Begin {ref} again when that one has "
                f"ended. Type: {command('show', replace(ref, run_id=other.ref.run_id))}"
            )
