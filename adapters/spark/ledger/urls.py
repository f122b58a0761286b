"""open_ledger: the ledger that a StoreConfig names."""

from __future__ import annotations

from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.ledger import RunLedger
from idempotent.adapters.spark.ledger.store import RunStore


def open_ledger(config: StoreConfig) -> RunLedger:
    """Make a ledger, which connects at its first use. Raises as `open_store`."""
    return RunLedger(open_store(config))


def open_store(config: StoreConfig) -> RunStore:
    """Make a store, which connects at its first use.

    Raises:
        ConfigurationError: the URL names no supported store.
        MissingExtraError: the store's driver is not installed.
    """
    if config.is_redis:
        from idempotent.adapters.spark.ledger.redis import RedisRunStore

        return RedisRunStore(config)
    from idempotent.adapters.spark.ledger.sql import SqlRunStore

    return SqlRunStore(config)
