"""The run ledger: runs, the keys that they own, and which of these count. Independent of Spark."""

from __future__ import annotations

from idempotent.adapters.spark.ledger.aborting import abort_run
from idempotent.adapters.spark.ledger.claims import (
    ATTEMPT_BYTES,
    FINGERPRINT_BYTES,
    HASH_BYTES,
    ClaimState,
    Held,
    Hold,
    Owner,
)
from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.handler_claims import HandlerClaims
from idempotent.adapters.spark.ledger.ledger import RunLedger
from idempotent.adapters.spark.ledger.run_claims import KeyDecision, OnConflict, RowVerdict, RunClaims
from idempotent.adapters.spark.ledger.runs import RunRef, RunRow, RunState
from idempotent.adapters.spark.ledger.store import RunStore
from idempotent.adapters.spark.ledger.urls import open_ledger, open_store

__all__ = [
    "ATTEMPT_BYTES",
    "FINGERPRINT_BYTES",
    "HASH_BYTES",
    "ClaimState",
    "HandlerClaims",
    "Held",
    "Hold",
    "KeyDecision",
    "OnConflict",
    "Owner",
    "RowVerdict",
    "RunClaims",
    "RunLedger",
    "RunRef",
    "RunRow",
    "RunState",
    "RunStore",
    "StoreConfig",
    "abort_run",
    "open_ledger",
    "open_store",
]
