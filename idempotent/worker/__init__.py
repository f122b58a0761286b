"""Worker: the loop from adapter to checker to handler to settlement."""

from __future__ import annotations

from idempotent.worker.settling import WorkerSummary
from idempotent.worker.worker import Worker

__all__ = ["Worker", "WorkerSummary"]
