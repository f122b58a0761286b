"""foreach_batch: each micro-batch of a Structured Streaming query is one run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

from idempotent.adapters.spark.keys import Columns
from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.run_claims import OnConflict
from idempotent.adapters.spark.publication import Publication
from idempotent.adapters.spark.run import DEFAULT_CHUNK, IdempotentRun
from idempotent.adapters.spark.session import classic_context

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_QUERY: Final = "sql.streaming.queryId"


def foreach_batch(
    store: StoreConfig,
    *,
    sink_id: str,
    key: Columns,
    handler: Callable[[DataFrame, Publication], object],
    staging: str,
    order_by: Columns = (),
    payload: Columns = (),
    unique: bool = False,
    fingerprint: Callable[[DataFrame], bytes] | None = None,
    on_conflict: OnConflict | Literal["wait", "fail", "divert"] = OnConflict.WAIT,
    wait_s: float = 600.0,
    lease_s: float = 60.0,
    chunk: int = DEFAULT_CHUNK,
    takeover: bool = False,
) -> Callable[[DataFrame, int], None]:
    """For `writeStream.foreachBatch` (classic and Connect): the new rows of each batch, published once.

    Spark may run a batch again after a crash, with the same number and the same rows. That resumes the batch's run,
    `<sink_id>-<batch>`; a committed run is not handled again.

    A new checkpoint counts batches from 0 again. With the old `sink_id` that is an error, so that no rows are dropped:
    give the new checkpoint a new `sink_id`, a consumer that knows no key. The query's id, which is in the checkpoint,
    tells the two apart. Spark Connect hides the id: there nothing tells them apart unless you give a `fingerprint`, and
    the batches of a new checkpoint would be taken for those that are committed.

    Guarantee: that of `IdempotentRun`, if `handler` deletes and replaces nothing, and may be repeated.

    Args:
        store: where the ledger is.
        sink_id: the consumer: one name for one checkpoint.
        key: one column or several that make two rows the same, see `IdempotentRun.dedup`.
        handler: called with `(staged_rows, publication)` to publish the rows, and again after a crash in it, with the
            same ones: `publication.copy_to(folder)`, an insert of the keys that are absent, or nothing but
            `publication.output_ref`.
        staging: a folder that executors can write to. Each attempt at a batch writes to a new folder in it.
        order_by: see `IdempotentRun.dedup`.
        payload: see `IdempotentRun.dedup`. A row of a known key with another payload ends the query.
        unique: see `IdempotentRun.dedup`.
        fingerprint: called with the batch; what it returns, at most 64 bytes, must be the same when Spark brings the
            batch again. Default: the query's id, where Spark tells it.
        on_conflict: see `IdempotentRun.begin`.
        wait_s: see `IdempotentRun.begin`.
        lease_s: see `IdempotentRun.begin`. After a SIGKILL the next driver waits for the rest of the lease.
        chunk: see `IdempotentRun.begin`.
        takeover: see `IdempotentRun.begin`.

    The returned function ends the query with RunInputChangedError when a checkpoint was reset under an old `sink_id`,
    and with the errors of `IdempotentRun`.
    """

    def process(batch: DataFrame, batch_id: int) -> None:
        # No colon in the name: Hadoop cannot make a folder with one.
        with IdempotentRun.begin(
            store,
            consumer=sink_id,
            run_id=f"{sink_id}-{batch_id}",
            fingerprint=_query(batch) if fingerprint is None else fingerprint(batch),
            on_conflict=on_conflict,
            wait_s=wait_s,
            lease_s=lease_s,
            chunk=chunk,
            takeover=takeover,
        ) as run:
            if run.is_committed:
                return
            new = run.dedup(batch, key=key, order_by=order_by, payload=payload, unique=unique)
            staged = run.stage(new, staging)

            def publish(publication: Publication) -> object:
                publication.batch_id = batch_id
                return handler(staged, publication)

            run.publish(publish)

    return process


def _query(batch: DataFrame) -> bytes | None:
    """The identity of the query that counts the batches, from its checkpoint; None where Spark hides it."""
    if classic_context() is None:
        return None
    query: str | None = batch.sparkSession.sparkContext.getLocalProperty(_QUERY)
    return hashlib.blake2b(f"query {query}".encode(), digest_size=20).digest() if query else None
