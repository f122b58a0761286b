"""checker_from_url: the checker that a URL names."""

from __future__ import annotations

from typing import Any, Final

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.memory.attempts import AttemptChecker
from idempotent.checkers.memory.checker import MemoryChecker
from idempotent.errors import ConfigurationError

_TRANSACTIONAL: Final = "transactional+"
_OFFSETS: Final = "offsets+"
_REDIS: Final = ("redis://", "rediss://", "unix://")


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
    try:
        if url.startswith("memory://"):
            return MemoryChecker(**options)
        if url.startswith("attempts://"):
            return AttemptChecker(**options)
        if url.startswith(_REDIS):
            from idempotent.checkers.redis import RedisChecker

            redis_checker: AbstractIdempotentChecker = RedisChecker(url, **options)
            return redis_checker
        if url.startswith(_TRANSACTIONAL):
            from idempotent.checkers.sql.transactional import TransactionalSqlChecker

            return TransactionalSqlChecker(url.removeprefix(_TRANSACTIONAL), **options)
        if url.startswith(_OFFSETS):
            from idempotent.checkers.sql.offsets import OffsetChecker

            return OffsetChecker(url.removeprefix(_OFFSETS), **options)
        from idempotent.checkers.sql.checker import SqlChecker

        return SqlChecker(url, **options)
    except TypeError as error:
        raise ConfigurationError(str(error)) from error
