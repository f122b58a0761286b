"""Store: the keys and the effects of a run."""

from __future__ import annotations

import random
from collections.abc import Iterator

import sqlalchemy as sa

from idempotent.testing.stage import redis_keys
from idempotent.testing.stage.databases import engine_at, use_write_ahead_log
from idempotent.testing.stage.stores import RunStore
from idempotent.torture.examination.effects import Effect, effects_table


class Store(RunStore):
    """A `RunStore` with a table of effects, in which a transactional checker's handlers write."""

    def prepare(self) -> None:
        """Create empty tables.

        Raises:
            StoreError: the store cannot be used; says which and what to do.
        """
        super().prepare()
        if not self.is_redis:
            with engine_at(self.store_url, self.name) as engine:
                use_write_ahead_log(engine)
                effects_table(self.name).create(engine)

    def clean(self) -> None:
        """Remove the tables or the keys.

        Raises:
            StoreError: the store does not answer any more.
        """
        super().clean()
        if not self.is_redis:
            with engine_at(self.store_url, self.name) as engine:
                effects_table(self.name).drop(engine, checkfirst=True)

    def effects(self) -> Iterator[Effect]:
        """The effects in the database, in the order in which they were written."""
        table = effects_table(self.name)
        with engine_at(self.store_url, self.name) as engine, engine.connect() as connection:
            for row in connection.execute(sa.select(table).order_by(table.c.number)).mappings():
                yield Effect(**{name: row[name] for name in Effect.__slots__})

    def lose_keys(self, share: float, chance: random.Random) -> None:
        """Delete some of the run's keys from Redis.

        Args:
            share: from 0 to 1, all of them.
            chance: chooses the keys.

        Raises:
            StoreUnavailableError: Redis does not answer.
        """
        redis_keys.delete_all(self.store_url, self._prefix, lambda: chance.random() < share)
