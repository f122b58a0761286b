"""The checker of the demo's consumer, on a table or prefix of the demo's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from idempotent.checkers import OffsetChecker, SqlChecker, TransactionalSqlChecker, checker_from_url
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.errors import ConfigurationError
from idempotent.testing.stage.databases import demo_engine
from idempotent.testing.stage.redis_keys import PREFIX, is_redis

_IN_THE_DATABASE: Final[Mapping[str, type[TransactionalSqlChecker | OffsetChecker]]] = {
    "transactional+": TransactionalSqlChecker,
    "offsets+": OffsetChecker,
}
KEYS_TABLE: Final = "demo_deduplicate_tbl"
# After a kill a leased checker waits for the rest of the lease; nobody wants to watch that for 30 seconds.
LEASE_S: Final = 2.0


def demo_checker(url: str) -> AbstractIdempotentChecker:
    """The checker of a URL.

    Raises:
        ConfigurationError: no such checker, or one that cannot outlive a killed process.
        MissingExtraError: its driver is not installed.
    """
    if url.startswith("memory://"):
        raise ConfigurationError(
            "memory:// forgets its keys with the process that the demo kills; give it a database or Redis"
        )
    if is_redis(url):
        return checker_from_url(url, prefix=PREFIX, lease_s=LEASE_S)
    database = database_of(url)
    for prefix, kind in _IN_THE_DATABASE.items():
        if url.startswith(prefix):
            return kind(demo_engine(database), table=KEYS_TABLE)
    return SqlChecker(demo_engine(url), table=KEYS_TABLE, lease_s=LEASE_S)


def database_of(url: str) -> str:
    """The URL of the database in a checker's URL."""
    for prefix in _IN_THE_DATABASE:
        url = url.removeprefix(prefix)
    return url


def is_in_the_database(url: str) -> bool:
    """Whether the checker works in the transaction of the bookings."""
    return url.startswith(tuple(_IN_THE_DATABASE))
