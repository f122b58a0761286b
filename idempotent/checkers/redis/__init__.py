"""Keys in Redis."""

from __future__ import annotations

from idempotent.checkers.redis.checker import RedisChecker

__all__ = ["RedisChecker"]
