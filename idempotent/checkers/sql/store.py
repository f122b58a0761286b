"""SqlStore: one database with one pair of deduplication tables, for the checkers and the admin tools."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Engine
from sqlalchemy.engine import URL

from idempotent.checkers.sql.keytable import KeyTable
from idempotent.schema import validate_table_name
from idempotent.stores.sql.connections import Connections, engine_from


class SqlStore:
    """The database that stores the keys.

    Args:
        engine_or_url: an SQLAlchemy engine or URL.
        table: name of the key table.

    Raises:
        ConfigurationError: an invalid URL or table name, or an unsupported database.
        MissingExtraError: the database's driver is not installed.
    """

    def __init__(self, engine_or_url: Engine | URL | str, table: str) -> None:
        self.table: Final = validate_table_name(table)
        self.engine: Final = engine_from(engine_or_url)
        self._owns_engine = self.engine is not engine_or_url
        self.connections: Final = Connections(self.engine, self.table)

    def keys(self, *, lease_s: float | None, retention_s: float) -> KeyTable:
        """The claim protocol on the key table, with these durations in seconds.

        Raises:
            StoreError: the database did not answer when asked for its version.
        """
        return KeyTable(self.connections.dialect, self.table, lease_s=lease_s, retention_s=retention_s)

    def close(self) -> None:
        """Close idle connections, and the engine if it was made here. Idempotent."""
        self.connections.close()
        if self._owns_engine:
            self.engine.dispose()
