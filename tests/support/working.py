"""A worker in a thread, for as long as a test needs it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from idempotent import Registry, Worker
from idempotent.adapters.base import Adapter
from idempotent.testing.adapter_contract import until
from idempotent.worker import WorkerSummary

_END_S = 150.0


def run_until(
    registry: Registry, adapter: Adapter, is_done: Callable[[], Any], *, concurrency: int = 2, **options: Any
) -> WorkerSummary:
    """Work until then; what the worker raises is raised here."""
    worker = Worker(registry, adapter, concurrency=concurrency, gc_interval_s=None, **options)
    summaries: list[WorkerSummary] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            summaries.append(worker.run())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: is_done() or not thread.is_alive(), "done")
    finally:
        worker.stop()
        thread.join(_END_S)
    if errors:
        raise errors[0]
    return summaries[0]
