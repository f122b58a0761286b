"""What a Python worker keeps between tasks: one connection for each store, however many tasks it runs."""

from __future__ import annotations

import os
import threading
from typing import Final

from idempotent.adapters.spark.ledger.base import Ledger
from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.run_claims import RunClaims
from idempotent.adapters.spark.ledger.runs import RunState
from idempotent.adapters.spark.ledger.urls import open_ledger
from idempotent.adapters.spark.tasks.handle import RunHandle
from idempotent.errors import RunFencedError, StoreReplacedError

# In this module, which workers import, and not in one that travels by value: that would be one for each task.
_ledgers: Final[dict[StoreConfig, Ledger]] = {}
_lock: Final = threading.Lock()
_pid = os.getpid()


def ledger_for(config: StoreConfig) -> Ledger:
    """This process's ledger of a store."""
    global _pid  # noqa: PLW0603 - a forked worker must not share its parent's connections
    with _lock:
        if _pid != os.getpid():
            _ledgers.clear()
            _pid = os.getpid()
        if config not in _ledgers:
            _ledgers[config] = open_ledger(config)
        return _ledgers[config]


def claims_for(handle: RunHandle) -> RunClaims:
    """The claims of a run, after a look that the store is the one in which it was begun.

    Raises:
        StoreReplacedError: the store does not know the run.
        RunFencedError: the run was aborted.
        StoreError: the store did not answer.
    """
    ledger = ledger_for(handle.store)
    check_store(ledger, handle)
    return RunClaims(ledger, handle.ref, on_conflict=handle.on_conflict, timeout_s=handle.wait_s)


def check_store(ledger: Ledger, handle: RunHandle) -> None:
    """Look that the run is there and alive. Raises as `claims_for`."""
    state = ledger.state_of([handle.ref.token])[handle.ref.token]
    if state is RunState.UNKNOWN:
        raise StoreReplacedError(
            f"the store at {handle.store.where} does not know {handle.ref}: it is another store, or lost its data"
        )
    if state is RunState.ABORTED:
        raise RunFencedError(f"{handle.ref} was aborted; begin it again")
