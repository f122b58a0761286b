"""SqlStore: one database with one pair of deduplication tables, for the checkers and the admin tools."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import MetaData, false
from sqlalchemy.engine import URL

from idempotent.checkers.sql.keytable import KeyTable
from idempotent.checkers.sql.statements import Durations
from idempotent.observe.counting import CountEvent
from idempotent.schema import dedup_tables, validate_table_name
from idempotent.stores.sql.bridge import Bridge
from idempotent.stores.sql.connections import AwaitedConnections, Connections
from idempotent.stores.sql.cursor import execute, query
from idempotent.stores.sql.engines import AnyEngine, engine_from
from idempotent.stores.sql.sockets import LONGEST_S


class SqlStore:
    """The database that stores the keys.

    Args:
        engine_or_url: an SQLAlchemy engine or URL.
        table: name of the key table.
        silence_s: see `limit_silence`.
        asynchronous: accept an AsyncEngine, or the URL of an asyncio driver, too.

    Attributes:
        bridge: runs the calls of plain threads through an asyncio driver.

    Raises:
        ConfigurationError: an invalid URL or table name, or an unsupported database.
        MissingExtraError: the database's driver is not installed.
    """

    def __init__(
        self,
        engine_or_url: AnyEngine,
        table: str,
        silence_s: float = LONGEST_S,
        *,
        asynchronous: bool = False,
    ) -> None:
        self.table: Final = validate_table_name(table)
        self.engine: Final = engine_from(engine_or_url, asynchronous=asynchronous)
        self._owns_engine = isinstance(engine_or_url, (str, URL))
        self.bridge: Final = Bridge()
        options: dict[str, Any] = {"silence_s": silence_s, "waits_briefly": True}
        self.connections: Final = (
            AwaitedConnections(self.bridge, self.engine, self.table, **options)
            if self.is_async
            else Connections(self.engine, self.table, **options)
        )

    @property
    def is_async(self) -> bool:
        """Whether the database is reached through an asyncio driver."""
        return self.engine.dialect.is_async

    @property
    def has_one_writer(self) -> bool:
        """Whether one transaction at a time may write, in all processes: SQLite locks its file."""
        return self.engine.dialect.name == "sqlite"

    def keys(self, durations: Durations, count: CountEvent, *, waits_briefly: bool = False) -> KeyTable:
        """The claim protocol on the key table; see `KeyTable` for the arguments.

        Raises:
            StoreError: the database did not answer when asked for its version.
        """
        return KeyTable(self.connections.dialect, self.table, durations, count, waits_briefly=waits_briefly)

    def ping(self, *, by_position: bool = False) -> None:
        """Check that the tables of keys (or of positions) and of failures have all columns and can be written.

        No row is read or changed.

        Args:
            by_position: check the table of positions in the place of that of keys.

        Raises:
            StoreError: the database did not answer, refused the login, takes no writes, or lacks a table or a column.
        """
        tables = dedup_tables(MetaData(), self.table)
        for table in (tables.offsets if by_position else tables.keys, tables.failures):
            nothing = table.select().where(false())
            statement = nothing.compile(dialect=self.engine.dialect, compile_kwargs={"literal_binds": True})
            self.connections.run(query, str(statement))
            if self.engine.dialect.name != "sqlite":  # there it would wait for each transaction that writes
                column = next(iter(table.c)).name
                name = self.connections.dialect.quoted(table.name)
                self.connections.run(execute, f"UPDATE {name} SET {column} = {column} WHERE 1 = 0")

    def close(self) -> None:
        """Close idle connections, and the engine if it was made here. Idempotent."""
        self.connections.close()
        if self._owns_engine:
            self.engine.dispose()
        self.bridge.close()
