"""A broker in this process, for tests and demos."""

from __future__ import annotations

from idempotent.adapters.memory.adapter import MemoryAdapter
from idempotent.adapters.memory.broker import DeadLetter, MemoryBroker

__all__ = ["DeadLetter", "MemoryAdapter", "MemoryBroker"]
