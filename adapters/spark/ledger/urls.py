"""open_ledger: the ledger that a StoreConfig names."""

from __future__ import annotations

from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.ledger import RunLedger


def open_ledger(config: StoreConfig) -> RunLedger:
    """Make a ledger, which connects at its first use.

    Raises:
        ConfigurationError: the URL names no supported store.
        MissingExtraError: the store's driver is not installed.
    """
    if config.is_redis:
        from idempotent.adapters.spark.ledger.redis import RedisRunStore

        return RunLedger(RedisRunStore(config))
    from idempotent.adapters.spark.ledger.sql import SqlRunStore

    return RunLedger(SqlRunStore(config))
