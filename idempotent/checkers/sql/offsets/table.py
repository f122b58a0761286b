"""OffsetTable: the next offset of each partition, advanced in the transaction of the effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Final

from idempotent.checkers.sql.statements import limited_update
from idempotent.keys import Key
from idempotent.schema import offsets_name
from idempotent.stores.sql.cursor import DriverConnection, Row, execute, query
from idempotent.stores.sql.dialects import SqlDialect


class OffsetTable:
    """The table `<table>_offsets`. Offsets only grow, and every change is conditioned on the stored one.

    Args:
        dialect: the properties of the database.
        table: validated name of the key table to which it belongs.
    """

    def __init__(self, dialect: SqlDialect, table: str) -> None:
        self._dialect = dialect
        name = dialect.quoted(offsets_name(table))
        self._returns = dialect.name == "postgresql"
        text, now = dialect.markers, dialect.now_us
        conflict = "ON DUPLICATE KEY UPDATE key_hash = key_hash"
        if dialect.name != "mysql":
            conflict = "ON CONFLICT (key_hash) DO NOTHING"
        self._begin: Final = text(
            f"INSERT INTO {name} (update_at, key_hash, k, next_offset) VALUES ({now}, ?, ?, ?) {conflict}"
        )
        change, where = (
            f"next_offset = ?, owner = ?, update_at = {now}",
            "key_hash = ? AND next_offset BETWEEN ? AND ?",
        )
        self._advance: Final = lru_cache(maxsize=8)(partial(limited_update, dialect, name, change, where))
        read = f"SELECT next_offset, owner FROM {name} WHERE key_hash = ?"
        self._read: Final = text(read)
        # In a transaction, a plain read may return the row as it was when the transaction began.
        self._read_newest: Final = text(f"{read}{dialect.locking_read}")

    def begin(self, connection: DriverConnection, starts: Mapping[Key, int]) -> dict[Key, int]:
        """The next offset of each partition. One that is not stored yet is stored with its offset in `starts`."""
        offsets = {}
        for key in sorted(starts, key=lambda key: key.hash):
            text = self._dialect.storable(connection, key.text)
            execute(connection, self._begin, (key.hash, text, starts[key]))
            ((offset, _),) = query(connection, self._read, (key.hash,))
            offsets[key] = int(offset)
        return offsets

    def advance(
        self,
        connection: DriverConnection,
        key: Key,
        between: tuple[int, int],
        to: int,
        owner: bytes,
        wait_s: float,
    ) -> bool:
        """Advance a partition, if its next offset lies in `between`, both ends included. Returns whether it did.

        Args:
            connection: a driver connection in a transaction.
            key: the partition's key.
            between: the lowest and highest next offset at which it may be.
            to: its new next offset.
            owner: the owner token of the claim.
            wait_s: the longest wait for another transaction that advances it, in seconds.
        """
        params = (to, owner, key.hash, *between)
        if self._returns:
            return query(connection, self._advance(wait_s), params)[0][0] is not None
        return execute(connection, self._advance(wait_s), params) == 1

    def read(self, connection: DriverConnection, key: Key, *, newest: bool = False) -> Row | None:
        """(next offset, owner of the last change) of a partition; None: `begin` has not stored it."""
        rows: Sequence[Row] = query(connection, self._read_newest if newest else self._read, (key.hash,))
        return rows[0] if rows else None
