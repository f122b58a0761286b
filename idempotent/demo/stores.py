"""The demo's keys and bookings: tables and keys of its own, created empty, removed at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import make_url

from idempotent.demo.bookings import WITH_CHECKER, WITHOUT_CHECKER, drop_table, make_table
from idempotent.testing.stage.stores import RunStore

_KEYS: Final = "demo_deduplicate_tbl"
# After a kill a leased checker waits for the rest of the lease: keep that short.
LEASE_S: Final = 2.0


def keys_at(checker_url: str) -> RunStore:
    """The store of the demo's keys. Raises as `RunStore`."""
    return RunStore(checker_url, _KEYS, lease_s=LEASE_S)


class Stores:
    """The keys and the bookings of one run.

    With a transactional checker the bookings are in its database, otherwise in files of the demo's own.

    Args:
        checker_url: the checker; None: a transactional one on a file in `folder`.
        folder: for files.

    Attributes:
        keys: the checker's store.
        with_checker: URL of the database of the bookings made with the checker.
        without_checker: URL of the database of the other bookings.

    Raises:
        ConfigurationError: the URL is invalid, or names a checker that the demo cannot use.
        MissingExtraError: the database's driver is not installed.
    """

    def __init__(self, checker_url: str | None, folder: Path) -> None:
        """Check the URL; create nothing yet."""
        # Two files, so that the two consumers do not wait for each other's lock.
        own = (
            f"sqlite:///{folder / 'with-checker.sqlite3'}",
            f"sqlite:///{folder / 'without-checker.sqlite3'}",
        )
        keys = keys_at(checker_url or f"transactional+{own[0]}")
        self.keys: Final = keys
        self.with_checker: Final = keys.store_url if keys.is_transactional else own[0]
        self.without_checker: Final = keys.store_url if keys.is_transactional and not keys.is_file else own[1]
        self._own_files = own

    @property
    def shown_url(self) -> str:
        """The checker's URL without the password."""
        return make_url(self.keys.url).render_as_string(hide_password=True)

    def prepare(self) -> None:
        """Create everything, empty.

        Raises:
            StoreError: a store cannot be used; says which and what to do.
        """
        self.keys.prepare()
        for url, table in self._tables():
            make_table(url, table, own_file=url in self._own_files)

    def clean(self) -> None:
        """Remove what `prepare` created; files of the demo's own are removed with their folder.

        Raises:
            StoreError: the store does not answer any more.
        """
        self.keys.clean()
        for url, table in self._tables():
            if url not in self._own_files:
                drop_table(url, table)

    def _tables(self) -> list[tuple[str, str]]:
        return [(self.with_checker, WITH_CHECKER), (self.without_checker, WITHOUT_CHECKER)]
