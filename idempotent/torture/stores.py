"""Store: the keys and the effects of a run. The effects have no unique key: only the checker prevents a second one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from idempotent.testing.stage.databases import RunTable
from idempotent.testing.stage.stores import RunStore, delete_keys


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect of one message.

    Attributes:
        position: its place in a partition, as text; empty where there are no partitions.
        process: the process that caused it: `<consumer>.<how often started>`.
        attempt: how often that process had begun the message, this time included.
        at: the time on the system's monotonic clock, in seconds.
        wall: the time on the clock of the process.
    """

    id: str
    position: str
    process: str
    attempt: int
    fence: int
    at: float
    wall: float


def effects_table(name: str) -> sa.Table:
    """The ledger with a transactional checker: a business table in its database."""
    return sa.Table(
        f"{name}_effects",
        sa.MetaData(),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("position", sa.String(100), nullable=False),
        sa.Column("process", sa.String(32), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("fence", sa.BigInteger, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("wall", sa.Double, nullable=False),
        mysql_engine="InnoDB",
    )


class Store(RunStore):
    """A `RunStore` with a table of effects, in which a transactional checker's handlers write."""

    def __init__(self, url: str, name: str, *, lease_s: float) -> None:
        super().__init__(url, name, lease_s=lease_s)
        self._effects: Final = None if self.is_redis else RunTable(self.store_url, effects_table(name))

    def prepare(self) -> None:
        super().prepare()
        if self._effects is not None:
            self._effects.prepare()

    def clean(self) -> None:
        super().clean()
        if self._effects is not None:
            self._effects.clean()

    def effects(self) -> Iterator[Effect]:
        """The effects in the database, in the order in which they were written."""
        assert self._effects is not None
        for row in self._effects.rows(*Effect.__slots__):
            yield Effect(*row)

    def lose_keys(self, share: float, chance: random.Random) -> None:
        """Delete about this share of the run's keys from Redis. Raises StoreUnavailableError: Redis does not answer."""
        delete_keys(self.store_url, self._prefix, lambda: chance.random() < share)
