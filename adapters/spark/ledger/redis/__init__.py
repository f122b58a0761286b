"""The run ledger in Redis."""

from __future__ import annotations

from idempotent.adapters.spark.ledger.redis.ledger import RedisLedger

__all__ = ["RedisLedger"]
