"""Where the demo keeps its keys and bookings: tables and keys of its own, made anew, removed at the end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from idempotent.checkers import OffsetChecker
from idempotent.claims import Guarantee
from idempotent.demo.bookings import WITH_CHECKER, WITHOUT_CHECKER, drop_table, make_table
from idempotent.errors import ConfigurationError
from idempotent.migrations import downgrade, upgrade
from idempotent.testing.stage import redis_keys
from idempotent.testing.stage.checkers import KEYS_TABLE, database_of, demo_checker, is_in_the_database
from idempotent.testing.stage.databases import engine_at


@dataclass(frozen=True, slots=True)
class Stores:
    """The places of one run. Made by `stores_for`.

    Attributes:
        checker_url: the checker, as given.
        checker: its class, for people.
        guarantee: what it promises.
        with_checker: URL of the database of the bookings behind the checker.
        without_checker: URL of the database of the other bookings.
    """

    checker_url: str
    checker: str
    guarantee: Guarantee
    with_checker: str
    without_checker: str
    _own_files: tuple[str, ...]

    @property
    def counts_offsets(self) -> bool:
        """The checker keeps no keys: a message that is sent twice is two messages to it."""
        return self.checker == OffsetChecker.__name__

    @property
    def shown_url(self) -> str:
        """The checker's URL without the password."""
        return make_url(self.checker_url).render_as_string(hide_password=True)

    def prepare(self) -> None:
        """Make everything anew and empty.

        Raises:
            StoreError: a store cannot be used; says which and what to do.
            MissingExtraError: its driver is not installed.
        """
        self._on_keys(make=True)
        for url, table in self._tables():
            make_table(url, table, own_file=url in self._own_files)

    def clean(self) -> None:
        """Remove what `prepare` made, files of the demo's own excepted: they go with their folder.

        Raises:
            StoreError: the store does not answer any more.
        """
        self._on_keys(make=False)
        for url, table in self._tables():
            if url not in self._own_files:
                drop_table(url, table)

    def _tables(self) -> list[tuple[str, str]]:
        return [(self.with_checker, WITH_CHECKER), (self.without_checker, WITHOUT_CHECKER)]

    def _on_keys(self, *, make: bool) -> None:
        if redis_keys.is_redis(self.checker_url):
            redis_keys.delete_all(self.checker_url)
            return
        with engine_at(database_of(self.checker_url), KEYS_TABLE) as engine:
            downgrade(engine, table=KEYS_TABLE)
            if make:
                upgrade(engine, table=KEYS_TABLE)


def stores_for(checker_url: str | None, folder: Path) -> Stores:
    """Where everything goes.

    With a transactional checker the bookings are in its database, else they are in files of the demo's own.

    Args:
        checker_url: the checker; None: a transactional one on a file in `folder`.
        folder: for files.

    Raises:
        ConfigurationError: the URL names no checker that the demo can use.
        MissingExtraError: its driver is not installed.
    """
    # Two files, so that the two consumers do not wait for each other's lock.
    own = f"sqlite:///{folder / 'with-checker.sqlite3'}", f"sqlite:///{folder / 'without-checker.sqlite3'}"
    url = checker_url or f"transactional+{own[0]}"
    checker = demo_checker(url)
    checker.close()
    try:
        is_sqlite = make_url(database_of(url)).get_backend_name() == "sqlite"
    except ArgumentError as error:
        raise ConfigurationError(f"not a URL: {url}") from error
    database = database_of(url) if is_in_the_database(url) else own[0]
    return Stores(
        checker_url=url,
        checker=type(checker).__name__,
        guarantee=checker.guarantee,
        with_checker=database,
        without_checker=own[1] if is_sqlite else database,
        _own_files=own,
    )
