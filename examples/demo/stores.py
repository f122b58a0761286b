"""The demo's keys and bookings: tables and keys of its own, created empty, removed at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Column, Integer, MetaData, String, Table, make_url

from examples.demo.stage.databases import RunTable
from examples.demo.stage.stores import RunStore

KEYS: Final = "demo_deduplicate_tbl"
# After a kill a leased checker waits for the rest of the lease: keep that short.
LEASE_S: Final = 2.0


def keys_at(checker_url: str) -> RunStore:
    """The store of the demo's keys. Raises as `RunStore`."""
    return RunStore(checker_url, KEYS, lease_s=LEASE_S)


def bookings_table(name: str) -> Table:
    """The business table."""
    return Table(
        name,
        MetaData(),
        Column("id", Integer, primary_key=True),
        Column("flight", String(64), nullable=False),
        Column("distance", Integer, nullable=False),
        Column("arr_delay", Integer),
    )


class Stores:
    """The keys, and the bookings made with the checker and without it.

    With a transactional checker the bookings are in its database, otherwise in files of the demo's own.

    Raises:
        ConfigurationError: the URL is invalid, or names a checker that the demo cannot use.
        MissingExtraError: the database's driver is not installed.
    """

    def __init__(self, checker_url: str | None, folder: Path) -> None:
        # Two files, so that the two consumers do not wait for each other's lock.
        own = f"sqlite:///{folder}/with-checker.sqlite3", f"sqlite:///{folder}/without-checker.sqlite3"
        self.keys: Final = keys_at(checker_url or f"transactional+{own[0]}")

        def bookings(name: str, url: str) -> RunTable:
            return RunTable(url, bookings_table(f"demo_flights_{name}"), write_ahead=url in own)

        shared, database = self.keys.is_transactional, self.keys.store_url
        self.with_checker: Final = bookings("with_checker", database if shared else own[0])
        self.without_checker: Final = bookings(
            "without_checker", database if shared and not self.keys.is_file else own[1]
        )

    @property
    def shown_url(self) -> str:
        """The checker's URL without the password."""
        return make_url(self.keys.url).render_as_string(hide_password=True)

    def prepare(self) -> None:
        """Create everything, empty. Raises StoreError: a store cannot be used."""
        for each in (self.keys, self.with_checker, self.without_checker):
            each.prepare()

    def clean(self) -> None:
        """Remove what `prepare` created. Raises StoreError: a store does not answer."""
        for each in (self.keys, self.with_checker, self.without_checker):
            each.clean()
