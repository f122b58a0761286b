"""SqlStore: one database with one pair of deduplication tables, for the checkers. SqlKeyAdmin: the keys in it."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final, ParamSpec, TypeVar

from sqlalchemy import MetaData
from sqlalchemy.engine import URL

from idempotent.admin import (
    NEVER_US,
    OWN_HEAD,
    KeyAdmin,
    KeyFilter,
    KeyRecord,
    KeyStats,
    StoreStats,
    WaitingKeys,
)
from idempotent.checkers.durations import microseconds
from idempotent.checkers.judging import stored_deaths
from idempotent.checkers.sql.statements import IN_PROGRESS, done, expired_keys
from idempotent.claims import NOBODY, KeyStatus
from idempotent.keys import SHOWN, Key
from idempotent.schema import dedup_tables, failures_name, validate_schema, validate_table_name
from idempotent.stores.sql.bridge import Bridge
from idempotent.stores.sql.connections import AwaitedConnections, Connections
from idempotent.stores.sql.cursor import DriverConnection, Row, execute, query
from idempotent.stores.sql.dialects import SqlDialect
from idempotent.stores.sql.engines import AnyEngine, engine_from
from idempotent.stores.sql.faults import name_of, options_for
from idempotent.stores.sql.sockets import LONGEST_S

P = ParamSpec("P")
T = TypeVar("T")

# Of the admin. A stored result, which a key has that is done, may take 1 MB, so a page is small. Without results it is
# not: where the keys that are meant are few, PostgreSQL reads the whole table for each page.
PAGE: Final = 200
_LIGHT_PAGE: Final = 5000
_K: Final = f"SUBSTR(k, 1, {SHOWN})"
_IS_NOT_OWN: Final = f"SUBSTR({{0}}k, 1, {len(OWN_HEAD)}) <> '{OWN_HEAD}'".format
MOST_EXPIRED: Final = 100_000
"""Expired keys that a measure counts at most."""
# The consumer in `k`, with the ':' after it: with it, a collation that ignores trailing blanks still separates "b" and
# "b ".
_CONSUMER: Final = {
    "mysql": f"CONCAT(SUBSTRING_INDEX({_K}, ':', 2), ':')",
    "postgresql": f"SPLIT_PART({_K}, ':', 1) || ':' || SPLIT_PART({_K}, ':', 2) || ':'",
    "sqlite": f"SUBSTR({_K}, 1, INSTR({_K}, ':') + INSTR(SUBSTR({_K} || '::', INSTR({_K}, ':') + 1), ':') - 1) || ':'",
}


class SqlStore:
    """The database that stores the keys.

    Args:
        engine_or_url: an SQLAlchemy engine or URL.
        table: name of the key table.
        silence_s: see `limit_silence`.
        schema: where the tables are; None: where the first connection finds the key table, or `located_by`.
        located_by: another table to find.
        asynchronous: accept an AsyncEngine, or the URL of an asyncio driver, too.

    Attributes:
        is_async: the database is reached through an asyncio driver.
        bridge: runs the calls of plain threads through such a driver.

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
        schema: str | None = None,
        located_by: str | None = None,
        asynchronous: bool = False,
    ) -> None:
        self.table: Final = validate_table_name(table)
        self._located_by: Final = located_by or table
        self.schema: Final = validate_schema(schema)
        self.engine: Final = engine_from(engine_or_url, asynchronous=asynchronous)
        self.is_async: Final[bool] = self.engine.dialect.is_async
        self._owns_engine = isinstance(engine_or_url, (str, URL))
        self.bridge: Final = Bridge()
        self._silence_s = silence_s
        self.connections: Final = self.more_connections()

    def more_connections(self) -> Connections:
        """New connections, which share none with `connections`. The caller closes them."""
        options: dict[str, Any] = {
            "located_by": self._located_by,
            "schema": self.schema,
            "silence_s": self._silence_s,
            "waits_briefly": True,
        }
        if self.is_async:
            return AwaitedConnections(self.bridge, self.engine, self.table, **options)
        return Connections(self.engine, self.table, **options)

    def bridged(self, function: Callable[P, T]) -> Callable[P, T]:
        """The function, as any thread may call it: its statements may have to be awaited."""
        return partial(self.bridge.run, function) if self.is_async else function

    @property
    def command_options(self) -> str:
        """The options that name these tables to a command, as a person types them."""
        return options_for(self.engine, self.table, self.schema)

    @property
    def name(self) -> str:
        """Where these tables are, without a user or a password."""
        return name_of(self.engine, self.table, self.schema)

    @property
    def has_one_writer(self) -> bool:
        """Whether one transaction at a time may write, in all processes: SQLite locks its file."""
        return self.engine.dialect.name == "sqlite"

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
            name, columns = self.connections.dialect.located(table.name), [column.name for column in table.c]
            look = f"SELECT {', '.join(columns)} FROM {name} WHERE 1 = 0"
            self.connections.run(query, look, answer_s=LONGEST_S)
            if self.engine.dialect.name != "sqlite":  # there it would wait for each transaction that writes
                change = f"UPDATE {name} SET {columns[0]} = {columns[0]} WHERE 1 = 0"
                self.connections.run(execute, change, answer_s=LONGEST_S)

    def close(self) -> None:
        """Close idle connections, and the engine if it was made here. Idempotent."""
        self.connections.close()
        if self._owns_engine:
            self.engine.dispose()
        self.bridge.close()


class SqlKeyAdmin(KeyAdmin):
    """The keys of one store.

    Args:
        store: the database.
        retention_s: seconds a resolved key is remembered.
    """

    def __init__(self, store: SqlStore, retention_s: float) -> None:
        self._store = store
        self._retention_us = microseconds(retention_s)

    def list(self, selection: KeyFilter, *, limit: int | None = None) -> Iterator[KeyRecord]:
        conditions, params = self._sql.where(selection)
        statement = self._sql.page(conditions)
        after, remaining = b"", limit
        has_no_result = selection.lapsed or (selection.statuses and KeyStatus.DONE not in selection.statuses)
        page = _LIGHT_PAGE if has_no_result else PAGE
        while remaining is None or remaining > 0:
            size = page if remaining is None else min(page, remaining)
            rows = self._query(statement, (after, *params, size))
            yield from map(_record, rows)
            if len(rows) < size:
                return
            after = bytes(rows[-1][0])
            remaining = None if remaining is None else remaining - size

    def get(self, key: Key) -> KeyRecord | None:
        return self.get_many([key]).get(key.hash)

    def get_many(self, keys: Sequence[Key]) -> Mapping[bytes, KeyRecord]:
        hashes = tuple(dict.fromkeys(key.hash for key in keys))
        if not hashes:
            return {}
        # A few keys by their index: a worker asks for its pauses this way, and must not wait for a silent server.
        some = self._sql.some(len(hashes))
        rows = self._store.connections.run(query, some, hashes, answer_s=LONGEST_S)
        return {record.hash: record for record in map(_record, rows)}

    def stats(self) -> builtins.list[KeyStats]:
        counted = [
            KeyStats(consumer.removesuffix(":"), KeyStatus(status), int(count), int(lapsed), int(oldest))
            for consumer, status, count, lapsed, oldest in self._query(self._sql.stats)
        ]
        # Sorted here, because the databases order text differently.
        return sorted(counted, key=lambda stats: (stats.consumer, stats.status))

    def measure(self) -> StoreStats:
        # Each statement reads one snapshot, and neither locks a row. The time is a parameter, because no index is used
        # to compare with a clock that goes on meanwhile.
        ((now,),) = self._query(self._sql.now)
        waiting = {
            consumer.removesuffix(":"): WaitingKeys(
                int(dead), int(lapsed), 0.0 if oldest is None else max(int(now) - int(oldest), 0) / 1e6
            )
            for consumer, dead, lapsed, oldest in self._query(self._sql.waiting, (int(now),))
        }
        ((expired,),) = self._query(self._sql.expired, (int(now), int(now)))
        return StoreStats(waiting, int(expired))

    def reopen(self, record: KeyRecord) -> bool:
        def delete(driver: DriverConnection) -> bool:
            if execute(driver, self._sql.reopen, _seen(record)) != 1:
                return False
            execute(driver, self._sql.forget_failures, (record.hash,))
            return True

        return self._store.connections.run_atomically(delete)

    def mark_done(self, record: KeyRecord) -> bool:
        return self._store.connections.run(
            lambda driver: execute(driver, self._sql.mark_done, _seen(record)) == 1
        )

    @cached_property
    def _sql(self) -> _AdminStatements:
        return _AdminStatements(self._store.connections.dialect, self._store.table, self._retention_us)

    def _query(self, statement: str, params: tuple[Any, ...] = ()) -> Sequence[Row]:
        return self._store.connections.run(query, statement, params)


class _AdminStatements:
    """The SQL text of SqlKeyAdmin, for one dialect and table."""

    def __init__(self, dialect: SqlDialect, table: str, retention_us: int) -> None:
        self._dialect = dialect
        table, failures = dialect.located(table), dialect.located(failures_name(table))
        now = dialect.now_us
        nobody = dialect.bytes_literal(NOBODY)
        self._lapsed = f"{IN_PROGRESS} AND lease_until < {now} AND owner <> {nobody}"
        self._select = (
            "SELECT t.key_hash, t.k, t.status, t.fence, t.lease_until, t.update_at, t.expires_at,"
            f" f.attempts, f.last_error, t.result, {now}, t.owner"
            f" FROM {table} t LEFT JOIN {failures} f ON f.key_hash = t.key_hash"
        )
        # The key must be as recorded: the same claim (fence) and state (status, update_at), without a live lease.
        # A claim without a lease (claim_once) never lapses, so only a person can free it. Nobody works on a held one.
        seen = (
            "key_hash = ? AND fence = ? AND status = ? AND update_at = ?"
            f" AND (status >= {KeyStatus.DONE:d} OR lease_until IS NULL OR lease_until < {now} OR owner = {nobody})"
        )
        self.reopen: Final = dialect.markers(f"DELETE FROM {table} WHERE {seen}")
        self.forget_failures: Final = dialect.markers(f"DELETE FROM {failures} WHERE key_hash = ?")
        self.mark_done: Final = dialect.markers(
            f"UPDATE {table} SET {done(dialect, retention_us)} WHERE {seen} AND status <> {KeyStatus.DONE:d}"
        )
        # The server groups the keys, so it returns few rows for each consumer.
        self.stats: Final = (
            f"SELECT {_CONSUMER[dialect.name]} AS consumer, status, COUNT(*),"
            f" SUM(CASE WHEN {self._lapsed} THEN 1 ELSE 0 END), MIN(update_at)"
            f" FROM {table} WHERE {_IS_NOT_OWN('')} GROUP BY 1, 2"
        )
        claimed = f"{IN_PROGRESS} AND owner <> {nobody}"
        self.now: Final = f"SELECT {now}"
        self.waiting: Final = dialect.markers(
            f"SELECT {_CONSUMER[dialect.name]} AS consumer,"
            f" SUM(CASE WHEN status = {KeyStatus.DEAD:d} THEN 1 ELSE 0 END),"
            f" SUM(CASE WHEN {claimed} AND lease_until < ? THEN 1 ELSE 0 END),"
            f" MIN(CASE WHEN {claimed} THEN update_at END)"
            f" FROM {table} WHERE status <> {KeyStatus.DONE:d} AND {_IS_NOT_OWN('')} GROUP BY 1"
        )
        # By the index of expiries, and no further than what many runs of gc would delete.
        self.expired: Final = dialect.markers(
            f"SELECT COUNT(*) FROM (SELECT 1 AS one FROM {table} WHERE {expired_keys('?')}"
            f" LIMIT {MOST_EXPIRED}) AS e"
        )

    def some(self, count: int) -> str:
        """So many keys. Parameters: their hashes."""
        return self._dialect.markers(f"{self._select} WHERE t.key_hash IN ({', '.join('?' * count)})")

    def where(self, selection: KeyFilter) -> tuple[str, tuple[Any, ...]]:
        """The conditions of a filter, each with its AND, and their parameters."""
        conditions, params = "", []
        if selection.head is None:
            conditions += f" AND {_IS_NOT_OWN('t.')}"
        else:
            # Not LIKE: a subject may contain its wildcards. Not a range: it depends on the collation.
            conditions += f" AND SUBSTR(t.k, 1, {len(selection.head)}) = ?"
            params.append(selection.head)
        if selection.statuses:
            conditions += (
                f" AND t.status IN ({', '.join(f'{status:d}' for status in sorted(selection.statuses))})"
            )
        if selection.lapsed:
            conditions += f" AND {self._lapsed}"
        return conditions, tuple(params)

    def page(self, conditions: str) -> str:
        """One page. Parameters: the key_hash before the page, those of the filter, the size."""
        return self._dialect.markers(
            f"{self._select} WHERE t.key_hash > ?{conditions} ORDER BY t.key_hash LIMIT ?"
        )


def _seen(record: KeyRecord) -> tuple[bytes, int, int, int]:
    return record.hash, record.fence, int(record.status), record.update_at_us


def _record(row: Row) -> KeyRecord:
    hashed, text, number, fence, lease_until, update_at, expires_at, attempts, error, result, now, owner = row
    status = KeyStatus(number)
    return KeyRecord(
        hash=bytes(hashed),
        text=text,
        status=status,
        fence=fence,
        lease_until_us=lease_until,
        update_at_us=update_at,
        expires_at_us=None if expires_at == NEVER_US else expires_at,
        attempts=attempts or 0,
        last_error=error,
        result=None if result is None else bytes(result),
        now_us=int(now),
        held=bytes(owner) == NOBODY and status.in_progress,
        deaths=stored_deaths(status, bytes(owner), fence, update_at),
    )
