"""The run ledger in Redis."""

from __future__ import annotations

from idempotent.adapters.spark.ledger.redis.store import RedisRunStore

__all__ = ["RedisRunStore"]
