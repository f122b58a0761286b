"""The run ledger: which runs there are, which keys they own, and whether that counts. No Spark in here."""

from __future__ import annotations

from .base import Ledger
from .claims import Decision, OnConflict, RunClaims, Verdict
from .config import StoreConfig
from .memory import MemoryLedger
from .opening import open_ledger
from .owned import ATTEMPT_BYTES, FINGERPRINT_BYTES, HASH_BYTES, ClaimState, Held, Hold, Owner
from .runs import RunRef, RunRow, RunState

__all__ = [
    "ATTEMPT_BYTES",
    "FINGERPRINT_BYTES",
    "HASH_BYTES",
    "ClaimState",
    "Decision",
    "Held",
    "Hold",
    "Ledger",
    "MemoryLedger",
    "OnConflict",
    "Owner",
    "RunClaims",
    "RunRef",
    "RunRow",
    "RunState",
    "StoreConfig",
    "Verdict",
    "open_ledger",
]
