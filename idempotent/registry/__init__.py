"""Registry: a set of consumers and their checkers. `consumer` is the decorator of a default one."""

from __future__ import annotations

from idempotent.registry.registry import Registry, consumer, default_registry

__all__ = ["Registry", "consumer", "default_registry"]
