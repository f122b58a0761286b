"""Where the keys and effects of a run are. Effects have no unique key: only the checker prevents a second one."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import parse_qsl, urlsplit

import sqlalchemy as sa

from examples.demo.stage.committed import committed
from examples.demo.stage.databases import RunTable, engine_at
from examples.demo.stage.places import KafkaPlace
from examples.demo.stage.stores import RunStore, delete_keys
from idempotent.checkers import AttemptChecker
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.claims import Guarantee
from idempotent.errors import ConfigurationError
from idempotent.schema import outbox_tables

ORDER_KEYS: Final = 40
"""How many order keys the messages of an outbox have."""


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


def counters_table(name: str) -> sa.Table:
    """How many messages each order key has had: the row that a transaction locks before it sends."""
    return sa.Table(
        f"{name}_counters",
        sa.MetaData(),
        sa.Column("order_key", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("count", sa.Integer, nullable=False),
        mysql_engine="InnoDB",
    )


class EffectStore(Protocol):
    """What a run needs to know of its store: the properties of `RunStore`, and the effects."""

    @property
    def url(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def guarantee(self) -> Guarantee: ...
    @property
    def by_position(self) -> bool: ...
    @property
    def keeps_order(self) -> bool: ...
    @property
    def is_redis(self) -> bool: ...
    @property
    def is_transactional(self) -> bool: ...
    @property
    def is_file(self) -> bool: ...
    def checker(self, *, is_async: bool = False) -> AbstractIdempotentChecker: ...
    def prepare(self) -> None: ...
    def clean(self) -> None: ...
    def effects(self) -> Iterator[Effect]: ...
    def waiting(self) -> Iterator[str]: ...
    def lose_keys(self, share: float, chance: random.Random) -> None: ...


def store_at(
    checker_url: str, broker_url: str, name: str, *, lease_s: float, outbox: bool = False
) -> EffectStore:
    """The store of a run: the checker's, or with Kafka's exactly-once a topic.

    Raises:
        ConfigurationError: an invalid URL, a checker whose keys are lost when its process is killed, or one with
            which handlers cannot send through an outbox.
    """
    if dict(parse_qsl(urlsplit(broker_url).query)).get("semantics") == "exactly_once":
        if outbox:
            raise ConfigurationError("an outbox is in a database, and exactly_once keeps everything in Kafka")
        return Outputs(checker_url, broker_url, name)
    return (StoreWithOutbox if outbox else Store)(checker_url, name, lease_s=lease_s)


def outputs_of(name: str) -> str:
    """The topic of the effects, with Kafka's exactly-once."""
    return f"{name}_effects"


class Outputs:
    """The topic to which handlers write their effects, in the transaction with the offset of the message.

    The checker keeps nothing, so a message that is sent twice is two messages.
    """

    guarantee: Final = Guarantee.TRANSACTIONAL
    by_position: Final = True
    keeps_order: Final = False
    is_redis = False
    is_transactional = True
    is_file = False

    def __init__(self, checker_url: str, broker_url: str, name: str) -> None:
        if not checker_url.startswith("attempts:"):
            raise ConfigurationError(
                "exactly_once needs the checker attempts://, because Kafka keeps what is done"
            )
        self.url: Final = checker_url
        self.name: Final = name
        self._place = KafkaPlace(broker_url, outputs_of(name), 1)

    def checker(self, *, is_async: bool = False) -> AttemptChecker:
        """A new checker, for handlers of both kinds."""
        del is_async
        return AttemptChecker()

    def prepare(self) -> None:
        """Create the topic."""
        self._place.make()

    def clean(self) -> None:
        """Remove the topic."""
        self._place.remove()

    def effects(self) -> Iterator[Effect]:
        """The committed effects, in the order of each partition.

        Raises:
            AdapterError: the broker does not answer, or a transaction stays open.
        """
        for body in committed(self._place.client_config, self._place.subject):
            yield Effect(**json.loads(body))

    def waiting(self) -> Iterator[str]:
        """There is no outbox."""
        return iter(())

    def lose_keys(self, share: float, chance: random.Random) -> None:
        """Only Redis loses keys."""
        raise NotImplementedError


class Store(RunStore):
    """A `RunStore` with a table of effects, in which a transactional checker's handlers write."""

    def __init__(self, url: str, name: str, *, lease_s: float) -> None:
        super().__init__(url, name, lease_s=lease_s)
        self._effects: Final = None if self.is_redis else RunTable(self.store_url, effects_table(name))

    @property
    def keeps_order(self) -> bool:
        """Whether no message of a group takes effect before an earlier one of its partition that failed or waits."""
        return self.by_position

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

    def waiting(self) -> Iterator[str]:
        """How the messages are known that wait in the outbox."""
        return iter(())

    def lose_keys(self, share: float, chance: random.Random) -> None:
        """Delete about this share of the run's keys from Redis. Raises StoreUnavailableError: Redis does not answer."""
        delete_keys(self.store_url, self._prefix, lambda: chance.random() < share)


class StoreWithOutbox(Store):
    """A `Store` of a transactional checker, whose handlers also send through an outbox.

    Raises:
        ConfigurationError: the checker keeps no keys in a database, or the database is for one process.
    """

    def __init__(self, url: str, name: str, *, lease_s: float) -> None:
        super().__init__(url, name, lease_s=lease_s)
        if not self.is_transactional or self.by_position or self.is_file:
            raise ConfigurationError("an outbox needs transactional+ and a database other than SQLite")
        self._counters: Final = RunTable(self.store_url, counters_table(name))
        self._waiting: Final = RunTable(self.store_url, outbox_tables(sa.MetaData(), name).waiting)

    def prepare(self) -> None:
        super().prepare()
        self._counters.prepare()
        with engine_at(self.store_url, self._counters.table.name) as engine, engine.begin() as connection:
            rows = [{"order_key": number, "count": 0} for number in range(ORDER_KEYS)]
            connection.execute(self._counters.table.insert(), rows)

    def clean(self) -> None:
        super().clean()
        self._counters.clean()

    def waiting(self) -> Iterator[str]:
        for (body,) in self._waiting.rows("body"):
            yield json.loads(body)["id"]
