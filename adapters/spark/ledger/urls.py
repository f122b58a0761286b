"""open_ledger: the ledger that a StoreConfig names."""

from __future__ import annotations

from idempotent.adapters.spark.ledger.base import Ledger
from idempotent.adapters.spark.ledger.config import StoreConfig


def open_ledger(config: StoreConfig) -> Ledger:
    """Make a ledger, which connects at its first use.

    Raises:
        ConfigurationError: the URL names no supported store.
        MissingExtraError: the store's driver is not installed.
    """
    if config.is_redis:
        from idempotent.adapters.spark.ledger.redis import RedisLedger

        redis_ledger: Ledger = RedisLedger(config)
        return redis_ledger
    from idempotent.adapters.spark.ledger.sql import SqlLedger

    return SqlLedger(config)
