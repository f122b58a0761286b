"""Collection: drivers delete what their ledger no longer needs, at most once an hour in one process for one store."""

from __future__ import annotations

import threading
import time
from typing import Final

from idempotent.adapters.spark.ledger.base import Ledger
from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.errors import StoreError
from idempotent.logs import EventLog

log = EventLog(__name__)
_INTERVAL_S: Final = 3600.0
_LIMIT: Final = 10_000
_due_at: Final[dict[StoreConfig, float]] = {}
_lock: Final = threading.Lock()


def collect(ledger: Ledger, store: StoreConfig) -> None:
    """Collect a bounded number of claims, unless this process has collected in this store within the hour."""
    now = time.monotonic()
    with _lock:
        if now < _due_at.get(store, now):
            return
        _due_at[store] = now + _INTERVAL_S
    try:
        deleted = ledger.gc(_LIMIT)
    except StoreError as error:
        # What is no longer needed only takes disk space.
        log.warning("run_claims_not_collected", extra={"error": str(error)})
    else:
        log.info("run_claims_collected", extra={"deleted": deleted})
