"""Keys of one's own in Redis: under a prefix, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from idempotent.errors import MissingExtraError, StoreUnavailableError

PREFIX: Final = "demo_flights:"
"""Of the demo."""
_BATCH: Final = 1_000


def is_redis(url: str) -> bool:
    """Whether a checker's URL means Redis."""
    return url.startswith(("redis://", "rediss://", "unix://"))


def delete_all(url: str, prefix: str = PREFIX, chosen: Callable[[], bool] = lambda: True) -> None:
    """Delete the keys under a prefix.

    Args:
        url: of Redis.
        prefix: of the keys.
        chosen: asked for each key.

    Raises:
        StoreUnavailableError: Redis does not answer.
        MissingExtraError: redis is not installed.
    """
    try:
        import redis
    except ModuleNotFoundError as error:
        raise MissingExtraError("redis", "redis") from error
    with redis.Redis.from_url(url) as client:
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
