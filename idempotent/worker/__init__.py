"""Worker: the loop from adapter to checker to handler to settlement."""

from __future__ import annotations

from idempotent.worker.worker import Worker, WorkerSummary

__all__ = ["Worker", "WorkerSummary"]
