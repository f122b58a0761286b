"""The ledgers of a Python worker process: one connection for each store, kept between tasks."""

from __future__ import annotations

import threading
from typing import Final

from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.ledger import RunLedger
from idempotent.adapters.spark.ledger.refusals import require_alive
from idempotent.adapters.spark.ledger.run_claims import RunClaims
from idempotent.adapters.spark.ledger.urls import open_ledger
from idempotent.adapters.spark.tasks.handle import BATCH_PROPERTY, RunHandle
from idempotent.errors import ConfigurationError
from idempotent.forks import free_in_child

# Workers import this module; in one that is pickled by value each task would have a dictionary of its own.
_ledgers: Final[dict[StoreConfig, RunLedger]] = {}
_lock: Final = free_in_child(threading.Lock())


def ledger_for(config: StoreConfig) -> RunLedger:
    """The ledger of a store that this process keeps."""
    with _lock:
        if config not in _ledgers:
            _ledgers[config] = open_ledger(config)
        return _ledgers[config]


def claims_for(handle: RunHandle) -> RunClaims:
    """The claims of a run, once the store is known to be the one in which it was begun.

    Raises:
        StoreReplacedError: the store does not know the run.
        RunFencedError: the run was aborted, or another driver has taken it over.
        ConfigurationError: the frame was not made for this micro-batch.
        StoreError: the store did not answer.
    """
    refuse_another_batch(handle)
    ledger = ledger_for(handle.store)
    require_alive(handle.ref, ledger.row(handle.ref.token), ledger.store.where)
    return RunClaims(
        ledger, handle.ref, frame=handle.frame, on_conflict=handle.on_conflict, timeout_s=handle.wait_s
    )


def refuse_another_batch(handle: RunHandle) -> None:
    """Refuse a frame of which each micro-batch of a stream is a part: all would be one run.

    Raises:
        ConfigurationError: the frame was not made for this micro-batch.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    batch = None if context is None else context.getLocalProperty(BATCH_PROPERTY)
    # Spark Connect hides the number within foreachBatch, from the driver and from its tasks.
    if batch is not None and batch != handle.batch:
        raise ConfigurationError(
            f"micro-batch {batch} of a stream is evaluated by a frame that was not made for it: a run is one batch. "
            "Use stream.writeStream.foreachBatch(foreach_batch(...)), which makes each batch a run"
        )
