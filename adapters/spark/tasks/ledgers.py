"""The ledgers of a Python worker process: one connection for each store, kept between tasks."""

from __future__ import annotations

import os
import threading
from typing import Final

from idempotent.adapters.spark.ledger.base import Ledger
from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.refusals import require_alive
from idempotent.adapters.spark.ledger.run_claims import RunClaims
from idempotent.adapters.spark.ledger.urls import open_ledger
from idempotent.adapters.spark.tasks.handle import RunHandle

# Workers import this module; in one that is pickled by value each task would have a dictionary of its own.
_ledgers: Final[dict[StoreConfig, Ledger]] = {}
_lock: Final = threading.Lock()
_pid = os.getpid()


def ledger_for(config: StoreConfig) -> Ledger:
    """The ledger of a store that this process keeps."""
    global _pid  # noqa: PLW0603 - a forked worker must not share its parent's connections
    with _lock:
        if _pid != os.getpid():
            _ledgers.clear()
            _pid = os.getpid()
        if config not in _ledgers:
            _ledgers[config] = open_ledger(config)
        return _ledgers[config]


def claims_for(handle: RunHandle) -> RunClaims:
    """The claims of a run, once the store is known to be the one in which it was begun.

    Raises:
        StoreReplacedError: the store does not know the run.
        RunFencedError: the run was aborted.
        StoreError: the store did not answer.
    """
    ledger = ledger_for(handle.store)
    check_store(ledger, handle)
    return RunClaims(ledger, handle.ref, on_conflict=handle.on_conflict, timeout_s=handle.wait_s)


def check_store(ledger: Ledger, handle: RunHandle) -> None:
    """Check that the store knows the run, and that it was not aborted. Raises as `claims_for`."""
    state = ledger.state_of([handle.ref.token])[handle.ref.token]
    require_alive(handle.ref, state, ledger.where)
