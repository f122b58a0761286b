"""OffsetTable: the next offset of each partition, moved on in the transaction of the effects."""

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
    """The table `<table>_offsets`. Offsets only grow, and every change is conditioned on the present one.

    Args:
        dialect: what differs between the databases.
        table: validated name of the key table it stands beside.
    """

    def __init__(self, dialect: SqlDialect, table: str) -> None:
        name = offsets_name(table)
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
        # Inside a transaction a plain read may show what was there when it began.
        self._read_newest: Final = text(f"{read}{dialect.locking_read}")

    def begin(self, connection: DriverConnection, starts: Mapping[Key, int]) -> dict[Key, int]:
        """The next offset of each partition; one that is not stored begins where `starts` says."""
        offsets = {}
        for key in sorted(starts, key=lambda key: key.hash):
            execute(connection, self._begin, (key.hash, key.text, starts[key]))
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
        """Move a partition on, if its next offset lies in `between`, both ends included.

        Args:
            connection: a driver connection in a transaction.
            key: of the partition.
            between: where its next offset must be.
            to: where it goes.
            owner: who moves it.
            wait_s: the longest wait for another transaction that moves it, in seconds.
        """
        params = (to, owner, key.hash, *between)
        if self._returns:
            return query(connection, self._advance(wait_s), params)[0][0] is not None
        return execute(connection, self._advance(wait_s), params) == 1

    def read(self, connection: DriverConnection, key: Key, *, newest: bool = False) -> Row | None:
        """(next offset, owner who moved it last) of a partition; None when it has not begun."""
        rows: Sequence[Row] = query(connection, self._read_newest if newest else self._read, (key.hash,))
        return rows[0] if rows else None
