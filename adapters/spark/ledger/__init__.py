"""The run ledger: runs, the keys that they own, and which of these count. Independent of Spark."""

from __future__ import annotations

from idempotent.adapters.spark.ledger.aborting import abort_run
from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.ledger import RunLedger
from idempotent.adapters.spark.ledger.run_claims import OnConflict
from idempotent.adapters.spark.ledger.runs import RunRow, RunState
from idempotent.adapters.spark.ledger.urls import open_ledger

__all__ = ["OnConflict", "RunLedger", "RunRow", "RunState", "StoreConfig", "abort_run", "open_ledger"]
