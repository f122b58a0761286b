"""checker_from_url: makes the checker that a URL names. Only this module interprets checker URLs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import Any, Final
from urllib.parse import unquote_plus

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.claims import Guarantee, Remembers
from idempotent.errors import ConfigurationError
from idempotent.validation import from_text, keywords, text


class StoreKind(Enum):
    """Where a checker keeps its keys."""

    MEMORY = "memory"
    REDIS = "redis"
    SQL = "sql"


@dataclass(frozen=True, slots=True)
class Scheme:
    """One form of checker URL.

    Attributes:
        start: the beginning of the URL.
        checker: the class, as `module:Class`; imported when a checker is made.
        kind: where the checker keeps its keys.
        guarantee: what the checker promises by default.
        remembers: what the checker remembers of a processed message.
        removed: the part of `start` that does not belong to the store's own URL.
    """

    start: str
    checker: str
    kind: StoreKind
    guarantee: Guarantee = Guarantee.LEASED
    remembers: Remembers = Remembers.KEYS
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
    Scheme(
        "attempts://",
        "idempotent.checkers.memory:AttemptChecker",
        StoreKind.MEMORY,
        remembers=Remembers.NOTHING,
    ),
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
        remembers=Remembers.POSITIONS,
        removed="offsets+",
    ),
)


def scheme_of(url: str) -> Scheme:
    """The scheme of a URL; an unknown one is treated as an SQLAlchemy URL."""
    return next((scheme for scheme in SCHEMES if url.startswith(scheme.start)), _ANY_SQL)


def checker_from_url(url: str, **options: Any) -> AbstractIdempotentChecker:
    """Make a checker.

    Args:
        url: `memory://`, `redis://host:6379/0`, any SQLAlchemy URL (`sqlite:///app.db`,
            `mysql+pymysql://user:password@host/db`, `postgresql+psycopg://user:password@host/db`), or
            `transactional+` before an SQLAlchemy URL, or for Kafka `offsets+` before one, or `attempts://`.
            Keywords of the checker's constructor may follow `?`: `redis://localhost?lease_s=5`. All other words there
            are the database driver's or the Redis client's.
        options: more of those keywords; they win over the URL's.

    Raises:
        ConfigurationError: the URL is invalid, or the checker's constructor does not take these options.
        MissingExtraError: the driver is not installed.
    """
    if "://" not in text(url, "url"):
        raise ConfigurationError(
            "a checker is an instance, a registered name, or a URL such as memory://, redis://localhost, "
            "sqlite:///app.db, transactional+postgresql+psycopg://user@host/db"
        )
    scheme = scheme_of(url)
    make = scheme.checker_class()
    url, of_url = parted(url)
    if scheme.kind is StoreKind.MEMORY and "?" in url:
        known = ", ".join(sorted(keywords(make)))
        raise ConfigurationError(f"unknown option in {scheme.start}; known: {known}")
    positional = () if scheme.kind is StoreKind.MEMORY else (scheme.store_url(url),)
    try:
        checker: AbstractIdempotentChecker = make(*positional, **{**of_url, **options})
    except TypeError as error:
        raise ConfigurationError(str(error)) from error
    return checker


def parted(url: str) -> tuple[str, dict[str, Any]]:
    """The URL without its checker's own options, and these.

    Raises:
        ConfigurationError: a value of another type.
    """
    kinds = keywords(scheme_of(url).checker_class())
    address, mark, query = url.partition("?")
    kept, options = [], {}
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if name in kinds:
            options[name] = from_text(name, unquote_plus(value), kinds)
        else:
            kept.append(part)
    return address + mark * bool(kept) + "&".join(kept) if options else url, options
