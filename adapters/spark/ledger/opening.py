"""open_ledger: the ledger that a StoreConfig names."""

from __future__ import annotations

from .base import Ledger
from .config import StoreConfig


def open_ledger(config: StoreConfig) -> Ledger:
    """Make a ledger; it connects when it is first used.

    Raises:
        ConfigurationError: not the URL of a supported store.
        MissingExtraError: its driver is not installed.
    """
    if config.is_redis:
        from .redis import RedisLedger

        redis_ledger: Ledger = RedisLedger(config)
        return redis_ledger
    from .sql import SqlLedger

    return SqlLedger(config)
