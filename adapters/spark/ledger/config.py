"""StoreConfig: where the ledger is, as plain data that travels to the executors."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sqlalchemy.exc import ArgumentError

from idempotent.checkers.base import DEFAULT_RETENTION_S
from idempotent.errors import ConfigurationError
from idempotent.schema import DEFAULT_TABLE, validate_table_name
from idempotent.stores.sql.engines import parsed_url
from idempotent.validation import seconds, text

DEFAULT_PREFIX: Final = "idempotent:"
_REDIS: Final = ("redis://", "rediss://", "unix://")


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """A store of runs and their claims. Picklable and hashable; connects to nothing.

    Attributes:
        url: an SQLAlchemy URL (`mysql+pymysql://`, `postgresql+psycopg://`, `sqlite:///file.db`) or `redis://`,
            `rediss://`. `repr` hides its password.
        table: SQL only: the tables are `<table>_runs` and `<table>_run_claims`.
        prefix: Redis only: the start of every key's name.
        retention_s: seconds that a claim is kept: more than the longest run, its time as PREPARED and the time in which
            a duplicate may come, together.

    Raises:
        ConfigurationError: an invalid URL, table, prefix or duration, or an `@` in the password, which is written %40.
    """

    url: str = field(repr=False)
    table: str = DEFAULT_TABLE
    prefix: str = DEFAULT_PREFIX
    retention_s: float = DEFAULT_RETENTION_S

    def __post_init__(self) -> None:
        """Check what can be checked without connecting."""
        validate_table_name(self.table)
        if not text(self.prefix, "prefix").isprintable() or "{" in self.prefix or "}" in self.prefix:
            raise ConfigurationError(f"prefix must be printable text without braces, not {self.prefix!r}")
        seconds(self.retention_s, "retention_s")
        if "://" not in text(self.url, "url"):
            raise ConfigurationError(
                "url must be redis://host:6379/0 or an SQLAlchemy URL such as "
                "postgresql+psycopg://user:password@host/db"
            )

        # Executors may have another working directory.
        object.__setattr__(self, "url", _absolute(self.url))

    @property
    def is_redis(self) -> bool:
        """Whether the ledger is in Redis."""
        return self.url.startswith(_REDIS)

    @property
    def where(self) -> str:
        """The URL without its password and without its options, which may hold a password too."""
        try:
            return parsed_url(self.url).set(query={}).render_as_string(hide_password=True)
        except (ArgumentError, ValueError):
            return self.url.split("://", 1)[0] + "://..."

    def __repr__(self) -> str:
        return (
            f"StoreConfig({self.where!r}, table={self.table!r}, prefix={self.prefix!r}, "
            f"retention_s={self.retention_s!r})"
        )


def _absolute(url: str) -> str:
    """The URL of an SQLite file with an absolute path; any other URL unchanged. Raises as `parsed_url`."""
    try:
        parts = parsed_url(url)
    except (ArgumentError, ValueError):
        return url
    if (
        parts.get_backend_name() != "sqlite"
        or not parts.database
        or parts.database.startswith((":memory:", "file:"))
    ):
        return url
    return parts.set(database=str(Path(parts.database).absolute())).render_as_string(hide_password=False)
