"""Store: where the keys and the effects of a run are, and what can be done to them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa

from idempotent.checkers import OffsetChecker, SqlChecker, TransactionalSqlChecker, checker_from_url
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.claims import Guarantee
from idempotent.errors import ConfigurationError
from idempotent.migrations import downgrade, upgrade
from idempotent.testing.stage import redis_keys
from idempotent.testing.stage.checkers import database_of, is_in_the_database
from idempotent.testing.stage.databases import demo_engine, engine_at
from idempotent.torture.examination.effects import Effect, effects_table

_LOCK_TIMEOUT_S: Final = 5.0


class Store:
    """The store of one run, with tables or keys of its own.

    Args:
        url: the checker's, as `idempotent run` takes it.
        name: of the run: an identifier.

    Raises:
        ConfigurationError: no such checker, or one that cannot outlive a killed process.
    """

    def __init__(self, url: str, name: str) -> None:
        """Make nothing yet."""
        if url.startswith(("memory://", "attempts://")):
            raise ConfigurationError(
                "what memory:// and attempts:// know dies with the process that is killed; give a database or Redis"
            )
        self.url: Final = url
        self.name: Final = name

    @property
    def is_redis(self) -> bool:
        """Whether it is Redis."""
        return redis_keys.is_redis(self.url)

    @property
    def is_file(self) -> bool:
        """Whether it is a file, which has no connections, no clock of its own and no restart."""
        return not self.is_redis and sa.make_url(database_of(self.url)).get_backend_name() == "sqlite"

    @property
    def guarantee(self) -> Guarantee:
        """What the checker promises."""
        return Guarantee.TRANSACTIONAL if is_in_the_database(self.url) else Guarantee.LEASED

    @property
    def by_position(self) -> bool:
        """Whether messages are known by their place in a partition: sent twice, one is two."""
        return self.url.startswith("offsets+")

    def checker(self, lease_s: float) -> AbstractIdempotentChecker:
        """A new one.

        Raises:
            ConfigurationError: the URL names none.
            MissingExtraError: its driver is not installed.
        """
        if self.is_redis:
            return checker_from_url(self.url, prefix=f"{self.name}:", lease_s=lease_s)
        engine = demo_engine(database_of(self.url))
        if self.by_position:
            return OffsetChecker(engine, table=self.name, lock_timeout_s=_LOCK_TIMEOUT_S)
        if self.guarantee is Guarantee.TRANSACTIONAL:
            return TransactionalSqlChecker(engine, table=self.name, lock_timeout_s=_LOCK_TIMEOUT_S)
        return SqlChecker(engine, table=self.name, lease_s=lease_s)

    def prepare(self) -> None:
        """Make tables.

        Raises:
            StoreError: the store cannot be used; says which and what to do.
        """
        if self.is_redis:
            redis_keys.delete_all(self.url, f"{self.name}:")
            return
        with engine_at(database_of(self.url), self.name) as engine:
            if self.is_file:
                with engine.connect() as connection:
                    connection.execute(sa.text("PRAGMA journal_mode=WAL"))
            upgrade(engine, table=self.name)
            effects_table(self.name).create(engine)

    def clean(self) -> None:
        """Remove what `prepare` made.

        Raises:
            StoreError: the store does not answer any more.
        """
        if self.is_redis:
            redis_keys.delete_all(self.url, f"{self.name}:")
            return
        with engine_at(database_of(self.url), self.name) as engine:
            effects_table(self.name).drop(engine, checkfirst=True)
            downgrade(engine, table=self.name)

    def effects(self) -> Iterator[Effect]:
        """The effects in the database, in the order in which they were written."""
        table = effects_table(self.name)
        with engine_at(database_of(self.url), self.name) as engine, engine.connect() as connection:
            for row in connection.execute(sa.select(table).order_by(table.c.number)).mappings():
                yield Effect(**{name: row[name] for name in Effect.__slots__})

    def lose_keys(self, share: float, chance: random.Random) -> None:
        """Let Redis lose keys of this run.

        Args:
            share: from 0 to 1, all of them.
            chance: chooses.

        Raises:
            StoreUnavailableError: Redis does not answer.
        """
        redis_keys.delete_all(self.url, f"{self.name}:", lambda: chance.random() < share)
