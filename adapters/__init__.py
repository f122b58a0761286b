"""Adapters: one broker's client each, behind one face. Importing this imports no client library."""

from __future__ import annotations

from idempotent.adapters.base import Adapter, Delivery
from idempotent.adapters.files import FileAdapter
from idempotent.adapters.memory import DeadLetter, MemoryAdapter, MemoryBroker
from idempotent.adapters.urls import adapter_from_url

__all__ = [
    "Adapter",
    "DeadLetter",
    "Delivery",
    "FileAdapter",
    "MemoryAdapter",
    "MemoryBroker",
    "adapter_from_url",
]
