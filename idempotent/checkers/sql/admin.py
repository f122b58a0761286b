"""SqlKeyAdmin: KeyAdmin over the keys of an SQL store."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

from idempotent.admin import NEVER_US, KeyAdmin, KeyFilter, KeyRecord, KeyStats
from idempotent.checkers.sql.statements import IN_PROGRESS, done, microseconds
from idempotent.checkers.sql.store import SqlStore
from idempotent.claims import NOBODY, KeyStatus
from idempotent.keys import SHOWN, Key
from idempotent.schema import failures_name
from idempotent.stores.sql.cursor import DriverConnection, Row, execute, query
from idempotent.stores.sql.dialects import SqlDialect

# A stored result may take 1 MB, so a page is small.
PAGE: Final = 200
_K: Final = f"SUBSTR(k, 1, {SHOWN})"
# The consumer in `k`, with the ':' after it: with it, a collation that ignores trailing blanks still separates "b" and
# "b ".
_CONSUMER: Final = {
    "mysql": f"CONCAT(SUBSTRING_INDEX({_K}, ':', 2), ':')",
    "postgresql": f"SPLIT_PART({_K}, ':', 1) || ':' || SPLIT_PART({_K}, ':', 2) || ':'",
    "sqlite": f"SUBSTR({_K}, 1, INSTR({_K}, ':') + INSTR(SUBSTR({_K} || '::', INSTR({_K}, ':') + 1), ':') - 1) || ':'",
}


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
        while remaining is None or remaining > 0:
            size = PAGE if remaining is None else min(PAGE, remaining)
            rows = self._query(statement, (after, *params, size))
            yield from map(_record, rows)
            if len(rows) < size:
                return
            after = bytes(rows[-1][0])
            remaining = None if remaining is None else remaining - size

    def get(self, key: Key) -> KeyRecord | None:
        rows = self._query(self._sql.one, (key.hash,))
        return _record(rows[0]) if rows else None

    def stats(self) -> builtins.list[KeyStats]:
        counted = [
            KeyStats(consumer.removesuffix(":"), KeyStatus(status), int(count), int(lapsed), int(oldest))
            for consumer, status, count, lapsed, oldest in self._query(self._sql.stats)
        ]
        # Sorted here, because the databases order text differently.
        return sorted(counted, key=lambda stats: (stats.consumer, stats.status))

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
    def _sql(self) -> _Statements:
        return _Statements(self._store.connections.dialect, self._store.table, self._retention_us)

    def _query(self, statement: str, params: tuple[Any, ...] = ()) -> Sequence[Row]:
        return self._store.connections.run(query, statement, params)


class _Statements:
    """The SQL text, for one dialect and table."""

    def __init__(self, dialect: SqlDialect, table: str, retention_us: int) -> None:
        self._dialect = dialect
        table, failures = dialect.quoted(table), dialect.quoted(failures_name(table))
        now = dialect.now_us
        nobody = dialect.bytes_literal(NOBODY)
        self._lapsed = f"{IN_PROGRESS} AND lease_until < {now} AND owner <> {nobody}"
        self._select = (
            "SELECT t.key_hash, t.k, t.status, t.fence, t.lease_until, t.update_at, t.expires_at,"
            f" f.attempts, f.last_error, t.result, {now}, t.owner"
            f" FROM {table} t LEFT JOIN {failures} f ON f.key_hash = t.key_hash"
        )
        self.one: Final = dialect.markers(f"{self._select} WHERE t.key_hash = ?")
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
            f" FROM {table} GROUP BY 1, 2"
        )

    def where(self, selection: KeyFilter) -> tuple[str, tuple[Any, ...]]:
        """The conditions of a filter, each with its AND, and their parameters."""
        conditions, params = "", []
        if selection.head is not None:
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
    hashed, text, status, fence, lease_until, update_at, expires_at, attempts, error, result, now, owner = row
    return KeyRecord(
        hash=bytes(hashed),
        text=text,
        status=KeyStatus(status),
        fence=fence,
        lease_until_us=lease_until,
        update_at_us=update_at,
        expires_at_us=None if expires_at == NEVER_US else expires_at,
        attempts=attempts or 0,
        last_error=error,
        result=None if result is None else bytes(result),
        now_us=int(now),
        held=bytes(owner) == NOBODY and status < KeyStatus.DONE,
    )
