"""InsertIfAbsent: insert claims of keys without an owner while the run is OPEN, and read the other claims."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

from idempotent.stores.sql.cursor import DriverConnection, Row, execute, query
from idempotent.stores.sql.dialects import Conflict, SqlDialect


class InsertIfAbsent:
    """One multi-row INSERT, and a SELECT of the rows that it does not return.

    Args:
        dialect: what differs between the databases.
        table: name of the table of claims.
        columns: SQL expressions of the columns to insert beside `key_hash` and `fingerprint`.
        answer: the columns to return; the first is `key_hash`.
        condition: rows are inserted only while it holds.
    """

    def __init__(
        self, dialect: SqlDialect, table: str, *, columns: dict[str, str], answer: str, condition: str
    ) -> None:
        """Make the constant parts of the statements."""
        self._dialect = dialect
        self._table = table
        self._columns = columns
        self._condition = condition
        self._conflict = {
            Conflict.RETURNS_NEW: f"ON CONFLICT (key_hash) DO NOTHING RETURNING {answer}",
            Conflict.RETURNS_ALL: f"ON DUPLICATE KEY UPDATE key_hash = {table}.key_hash RETURNING {answer}",
            Conflict.SILENT: f"ON DUPLICATE KEY UPDATE key_hash = {table}.key_hash",
        }[dialect.conflict]
        self._answer = f"SELECT {answer} FROM {table} WHERE key_hash IN "
        self._insert = lru_cache(maxsize=64)(self._insert_rows)
        self._reads: Final = lru_cache(maxsize=64)(self._read_keys)

    def run(
        self,
        connection: DriverConnection,
        hashes: Sequence[bytes],
        fingerprints: Sequence[bytes | None] | None,
        values: Sequence[Any],
    ) -> dict[bytes, Row]:
        """Insert claims; the rows of all keys that have one afterwards.

        Args:
            connection: a driver connection in autocommit.
            hashes: of the keys.
            fingerprints: aligned; None: no key has one, which saves a parameter for each key.
            values: parameters of the columns and of the condition.
        """
        # Sorted: two statements lock their common keys in the same order.
        if fingerprints is None:
            params: list[bytes | None] = sorted(hashes)  # type: ignore[assignment]
        else:
            params = [
                part
                for key in sorted(zip(hashes, fingerprints, strict=True), key=itemgetter(0))
                for part in key
            ]
        statement = self._insert(len(hashes), fingerprints is not None)
        if self._dialect.conflict is Conflict.SILENT:
            execute(connection, statement, (*params, *values))
            return self.read(connection, hashes)
        rows = {bytes(row[0]): row for row in query(connection, statement, (*params, *values))}
        if len(rows) == len(hashes):
            return rows
        return rows | self.read(connection, [key_hash for key_hash in hashes if key_hash not in rows])

    def read(self, connection: DriverConnection, hashes: Sequence[bytes]) -> dict[bytes, Row]:
        """The rows of the keys that have one."""
        found = query(connection, self._reads(len(hashes)), hashes)
        return {bytes(row[0]): row for row in found}

    def _insert_rows(self, count: int, with_fingerprints: bool) -> str:  # noqa: FBT001 - a key of the cache
        given = {"key_hash": "h", "fingerprint": "f"} if with_fingerprints else {"key_hash": "h"}
        row = ", ".join("?" * len(given))
        # Only MySQL wants ROW() after VALUES; MariaDB is faster with VALUES than with UNION ALL.
        if self._dialect.conflict is Conflict.SILENT:
            rows = " UNION ALL ".join([f"SELECT {row}"] * count)
        else:
            rows = "VALUES " + ", ".join([f"({row})"] * count)
        blobs = [f"CAST(v.{name} AS {self._dialect.blob})" for name in given.values()]
        statement = (
            f"INSERT INTO {self._table} ({', '.join([*given, *self._columns])})"
            f" WITH v({', '.join(given.values())}) AS ({rows})"
            f" SELECT {', '.join([*blobs, *self._columns.values()])} FROM v WHERE {self._condition}"
            f" {self._conflict}"
        )
        return self._dialect.markers(statement)

    def _read_keys(self, count: int) -> str:
        return self._dialect.markers(self._answer + listed(count))


def listed(count: int) -> str:
    """`(?, ?, ...)`, a marker for each of `count` values."""
    return f"({', '.join('?' * count)})"
