"""Delete a run's keys from Redis: those under its prefix, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from idempotent.errors import StoreUnavailableError

PREFIX: Final = "demo_flights:"
"""Prefix of the demo's keys."""
_BATCH: Final = 1_000


def delete_all(url: str, prefix: str = PREFIX, chosen: Callable[[], bool] = lambda: True) -> None:
    """Delete the keys under a prefix.

    Args:
        url: the Redis server's URL.
        prefix: what the keys begin with.
        chosen: called for each key; only those for which it returns true are deleted.

    Raises:
        StoreUnavailableError: Redis does not answer.
        MissingExtraError: redis is not installed.
    """
    from idempotent.stores.redis.client import open_client, redis

    with open_client(url) as client:
        try:
            cursor = None
            while cursor != 0:
                cursor, keys = client.scan(cursor or 0, match=f"{prefix}*", count=_BATCH)
                if keys := [key for key in keys if chosen()]:
                    client.unlink(*keys)
        except redis.RedisError as error:
            raise StoreUnavailableError(
                f"cannot use Redis: {error}. Check that the server runs, the host, port and password."
            ) from error
