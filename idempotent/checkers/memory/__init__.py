"""Keys in the memory of one process."""

from __future__ import annotations

from idempotent.checkers.memory.checker import AttemptChecker, MemoryChecker

__all__ = ["AttemptChecker", "MemoryChecker"]
