"""checker_from_url: the checker that a URL names. One table of schemes; nothing else compares prefixes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any, Final

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.claims import Guarantee
from idempotent.errors import ConfigurationError


class StoreKind(Enum):
    """Where a checker keeps its keys."""

    MEMORY = "memory"
    REDIS = "redis"
    SQL = "sql"


@dataclass(frozen=True, slots=True)
class Scheme:
    """A row of the table.

    Attributes:
        start: what the checker's URL begins with.
        checker: the class, as `module:Class`; imported when a checker is made.
        kind: where the keys are.
        guarantee: what the checker promises by default.
        by_position: messages are known by their place in a partition.
        removed: how much of `start` is no part of the store's own URL.
    """

    start: str
    checker: str
    kind: StoreKind
    guarantee: Guarantee = Guarantee.LEASED
    by_position: bool = False
    removed: str = ""

    def store_url(self, url: str) -> str:
        """The URL of the store in the checker's URL."""
        return url.removeprefix(self.removed)

    def checker_class(self) -> Any:
        """The checker's class, imported now."""
        module, _, name = self.checker.partition(":")
        return getattr(import_module(module), name)


_SQL: Final = "idempotent.checkers.sql"
_REDIS: Final = "idempotent.checkers.redis:RedisChecker"
_ANY_SQL: Final = Scheme("", f"{_SQL}:SqlChecker", StoreKind.SQL)
SCHEMES: Final = (
    Scheme("memory://", "idempotent.checkers.memory:MemoryChecker", StoreKind.MEMORY),
    Scheme("attempts://", "idempotent.checkers.memory:AttemptChecker", StoreKind.MEMORY, by_position=True),
    Scheme("redis://", _REDIS, StoreKind.REDIS),
    Scheme("rediss://", _REDIS, StoreKind.REDIS),
    Scheme("unix://", _REDIS, StoreKind.REDIS),
    Scheme(
        "transactional+",
        f"{_SQL}:TransactionalSqlChecker",
        StoreKind.SQL,
        Guarantee.TRANSACTIONAL,
        removed="transactional+",
    ),
    Scheme(
        "offsets+",
        f"{_SQL}:OffsetChecker",
        StoreKind.SQL,
        Guarantee.TRANSACTIONAL,
        by_position=True,
        removed="offsets+",
    ),
)


def scheme_of(url: str) -> Scheme:
    """The row for a URL; any other URL is taken for SQLAlchemy's."""
    return next((scheme for scheme in SCHEMES if url.startswith(scheme.start)), _ANY_SQL)


def checker_from_url(url: str, **options: Any) -> AbstractIdempotentChecker:
    """Make a checker.

    Args:
        url: `memory://`, `redis://host:6379/0`, any SQLAlchemy URL (`sqlite:///app.db`,
            `mysql+pymysql://user:password@host/db`, `postgresql+psycopg://user:password@host/db`), or
            `transactional+` and an SQLAlchemy URL, or for Kafka `offsets+` and one, or `attempts://`.
        options: keywords of the checker's constructor.

    Raises:
        ConfigurationError: not such a URL, or a keyword the checker does not know.
        MissingExtraError: the driver is not installed.
    """
    if "://" not in url:
        raise ConfigurationError(
            "a checker is an instance, a registered name, or a URL such as memory://, redis://localhost, "
            "sqlite:///app.db, transactional+postgresql+psycopg://user@host/db"
        )
    scheme = scheme_of(url)
    make = scheme.checker_class()
    positional = () if scheme.kind is StoreKind.MEMORY else (scheme.store_url(url),)
    try:
        checker: AbstractIdempotentChecker = make(*positional, **options)
    except TypeError as error:
        raise ConfigurationError(str(error)) from error
    return checker
