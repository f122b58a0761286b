"""RunStore: the checker of a run, on a table or under a key prefix of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Final

from sqlalchemy import make_url

from examples.demo.stage.databases import async_url, engine_at, tuned_engine
from idempotent.checkers.base import DEFAULT_LEASE_S, AbstractIdempotentChecker
from idempotent.checkers.urls import StoreKind, checker_from_url, scheme_of
from idempotent.claims import Guarantee
from idempotent.errors import ConfigurationError, StoreUnavailableError
from idempotent.migrations import downgrade, upgrade

_BATCH: Final = 1_000


class RunStore:
    """Where a run keeps its keys.

    Args:
        url: the checker's URL, as `idempotent run` takes it.
        name: the table, or the prefix of the Redis keys: an identifier.
        lease_s: seconds a claim of a leased checker lasts.

    Attributes:
        checker_name: the checker's class, for people.
        guarantee: what the checker promises.
        by_position: the checker counts offsets and keeps no keys: a message that is sent twice is two messages.

    Raises:
        ConfigurationError: an invalid URL, or a checker whose keys are lost when its process is killed.
        MissingExtraError: the database's driver is not installed.
    """

    def __init__(self, url: str, name: str, *, lease_s: float = DEFAULT_LEASE_S) -> None:
        self._scheme = scheme_of(url)
        if self._scheme.kind is StoreKind.MEMORY:
            raise ConfigurationError(
                f"{self._scheme.start} forgets its keys with the process that is killed; give a database or Redis"
            )
        self.url: Final = url
        self.name: Final = name
        self.lease_s: Final = lease_s
        self.checker_name: Final = self._scheme.checker.rpartition(":")[2]
        self.guarantee: Final = self._scheme.guarantee
        self.by_position: Final = self._scheme.remembers.by_position
        self.checker().close()

    @property
    def is_redis(self) -> bool:
        """Whether the keys are in Redis."""
        return self._scheme.kind is StoreKind.REDIS

    @property
    def is_transactional(self) -> bool:
        """Whether effects and keys commit together, in one database."""
        return self.guarantee is Guarantee.TRANSACTIONAL

    @cached_property
    def is_file(self) -> bool:
        """Whether it is an SQLite file, which has no connections, no clock of its own and no restart."""
        return not self.is_redis and make_url(self.store_url).get_backend_name() == "sqlite"

    @property
    def store_url(self) -> str:
        """The URL of the database or of Redis."""
        return self._scheme.store_url(self.url)

    def checker(self, *, is_async: bool = False) -> AbstractIdempotentChecker:
        """A new checker; of a transactional one, with `is_async` one for `async def` handlers."""
        if is_async and self.is_transactional:
            made: AbstractIdempotentChecker = self._scheme.checker_class()(
                async_url(self.store_url), table=self.name
            )
            return made
        lease = {"lease_s": self.lease_s} if self.guarantee is Guarantee.LEASED else {}
        if self.is_redis:
            return checker_from_url(self.url, prefix=self._prefix, **lease)
        engine = tuned_engine(self.store_url)
        checker: AbstractIdempotentChecker = self._scheme.checker_class()(engine, table=self.name, **lease)
        return checker

    def prepare(self) -> None:
        """Create an empty table, or delete left-over keys. Raises StoreError: the store cannot be used."""
        self.clean()
        if not self.is_redis:
            with engine_at(self.store_url, self.name) as engine:
                upgrade(engine, table=self.name)

    def clean(self) -> None:
        """Remove the table or the keys. Raises StoreError: the store does not answer any more."""
        if self.is_redis:
            delete_keys(self.store_url, self._prefix)
            return
        with engine_at(self.store_url, self.name) as engine:
            downgrade(engine, table=self.name)

    @property
    def _prefix(self) -> str:
        return f"{self.name}:"


def delete_keys(url: str, prefix: str, chosen: Callable[[], bool] = lambda: True) -> None:
    """Delete the keys under a prefix, those for which `chosen` returns true. Raises StoreUnavailableError."""
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
