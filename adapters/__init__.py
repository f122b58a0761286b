"""Adapters: one broker's client each, behind one face. Importing this imports no client library."""

from __future__ import annotations

from .base import Adapter, Delivery
from .files import FileAdapter
from .memory import MemoryAdapter
from .memory_broker import DeadLetter, MemoryBroker
from .urls import adapter_from_url

__all__ = [
    "Adapter",
    "DeadLetter",
    "Delivery",
    "FileAdapter",
    "MemoryAdapter",
    "MemoryBroker",
    "adapter_from_url",
]
