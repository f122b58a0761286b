"""HandlerPool: runs a worker's handlers, plain ones in threads and `async def` ones as tasks of one event loop."""

from __future__ import annotations

from idempotent.worker.handlers.handler_queue import Done
from idempotent.worker.handlers.pool import HandlerPool
from idempotent.worker.handlers.tasks import LoopPlace

__all__ = ["Done", "HandlerPool", "LoopPlace"]
