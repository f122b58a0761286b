"""foreach_batch: each micro-batch of a Structured Streaming query is one run."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from idempotent.adapters.spark.columns import quoted
from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.run_claims import OnConflict
from idempotent.adapters.spark.publication import Publication
from idempotent.adapters.spark.run import DEFAULT_CHUNK, IdempotentRun
from idempotent.adapters.spark.session import classic_context

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

log = logging.getLogger(__name__)
_QUERY: Final = "sql.streaming.queryId"


def foreach_batch(
    store: StoreConfig,
    *,
    sink_id: str,
    key: str | Sequence[str],
    handler: Callable[[DataFrame, Publication], object],
    order_by: Sequence[str | Column] = (),
    on_conflict: OnConflict | str = OnConflict.WAIT,
    wait_s: float = 600.0,
    lease_s: float = 300.0,
    chunk: int = DEFAULT_CHUNK,
) -> Callable[[DataFrame, int], None]:
    """For `writeStream.foreachBatch` (classic and Connect): the new rows of each batch, published once.

    Spark may run a batch again after a crash, with the same number and the same rows. That resumes the batch's run,
    `<sink_id>-<batch>`; a committed run is not handled again.

    A new checkpoint counts batches from 0 again. With the old `sink_id` that is an error, so that no rows are dropped:
    give the new checkpoint a new `sink_id`. The query's id, which is in the checkpoint, tells the two apart; on Spark
    Connect, where the id is hidden, a checksum over the rows does.

    Guarantee: that of `IdempotentRun`, if `handler` is idempotent by `publication.run_id`.

    Args:
        store: where the ledger is.
        sink_id: the consumer: one name for one checkpoint.
        key: columns that make two rows the same.
        handler: called with `(new_rows, publication)` to publish the rows, and again after a crash in it. A write with
            `mode("overwrite")` to a folder named after the run is enough.
        order_by: which row of a key stays, see `IdempotentRun.dedup`.
        on_conflict, wait_s, lease_s, chunk: see `IdempotentRun.begin`.

    The returned function ends the query with RunInputChangedError when a checkpoint was reset under an old `sink_id`,
    and with the errors of `IdempotentRun`.
    """

    def process(batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        try:
            # No colon in the name: Hadoop cannot replace a folder with one.
            with IdempotentRun.begin(
                store,
                consumer=sink_id,
                run_id=f"{sink_id}-{batch_id}",
                fingerprint=_identity(batch),
                on_conflict=on_conflict,
                wait_s=wait_s,
                lease_s=lease_s,
                chunk=chunk,
            ) as run:
                if run.is_committed:
                    log.info("batch_already_committed", extra={"run_id": run.run_id})
                    return
                new = run.dedup(batch, key=key, order_by=order_by)
                if not run.is_prepared:
                    run.claim(new)
                with run.publishing() as publication:
                    handler(new, publication)
        finally:
            batch.unpersist()

    return process


def _identity(batch: DataFrame) -> bytes:
    """What a batch number stands for: the query that counts batches, or the rows where the query is unknown."""
    query = _query_id(batch)
    text = f"query {query}" if query else f"rows {_checksum(batch)}"
    return hashlib.blake2b(text.encode(), digest_size=20).digest()


def _query_id(batch: DataFrame) -> str | None:
    if classic_context() is None:
        return None
    value: Any = batch.sparkSession.sparkContext.getLocalProperty(_QUERY)
    return value or None


def _checksum(batch: DataFrame) -> str:
    """A checksum over a batch's rows that does not depend on their order."""
    from pyspark.sql import functions as F

    columns = [F.col(quoted(name)).cast("string") for name in batch.columns]
    each = F.xxhash64(*columns)
    row = batch.agg(F.count(F.lit(1)), F.bit_xor(each), F.sum(each.cast("decimal(38,0)"))).collect()[0]
    return ":".join(map(str, row))
