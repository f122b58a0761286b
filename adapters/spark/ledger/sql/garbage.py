"""Garbage: claims and runs that are no longer needed, deleted in bounded batches."""

from __future__ import annotations

from typing import Final

from idempotent.adapters.spark.ledger.claims import MAX_ROWS, ClaimState
from idempotent.adapters.spark.ledger.runs import RunState
from idempotent.adapters.spark.ledger.sql.insert_if_absent import listed
from idempotent.stores.sql.cursor import DriverConnection, execute, query
from idempotent.stores.sql.dialects import SqlDialect


class Garbage:
    """Finds rows without locks, and deletes them by primary key.

    Args:
        dialect: what differs between the databases.
        runs: name of the table of runs.
        claims: name of the table of claims.
        retention_us: how long claims are kept, in microseconds.
    """

    def __init__(self, dialect: SqlDialect, runs: str, claims: str, retention_us: int) -> None:
        """Make the statements."""
        self._text = text = dialect.markers
        self._claims, self._runs = claims, runs
        now = dialect.now_us
        before = f"{now} - {retention_us}"
        self._abandoned: Final = text(
            f"SELECT token FROM {runs} WHERE ended_at IS NULL AND state = {RunState.OPEN:d}"
            f" AND began_at < {before} AND lease_until < {now} LIMIT ?"
        )
        # Run by run: claims that count are never read.
        expired = f"r.ended_at < {before}"
        not_done = f"c.state <> {ClaimState.DONE:d}"
        self._ended: Final = text(
            f"SELECT r.token, {expired} FROM {runs} r WHERE r.ended_at IS NOT NULL"
            f" AND ({expired} OR r.state = {RunState.ABORTED:d})"
            f" AND EXISTS (SELECT 1 FROM {claims} c WHERE c.run = r.token AND ({expired} OR {not_done})) LIMIT ?"
        )
        self._all_of: Final = text(f"SELECT key_hash FROM {claims} c WHERE c.run = ? LIMIT ?")
        self._unfinished_of: Final = text(
            f"SELECT key_hash FROM {claims} c WHERE c.run = ? AND {not_done} LIMIT ?"
        )
        self._empty: Final = text(
            f"SELECT r.token FROM {runs} r WHERE {expired}"
            f" AND NOT EXISTS (SELECT 1 FROM {claims} c WHERE c.run = r.token) LIMIT ?"
        )

    def abandoned(self, connection: DriverConnection) -> list[int]:
        """Tokens of OPEN runs that began a retention ago and whose lease has ended; a batch of them."""
        return [int(token) for (token,) in query(connection, self._abandoned, (MAX_ROWS,))]

    def delete_claims(self, connection: DriverConnection, limit: int) -> int:
        """Delete at most `limit` claims of ended runs; the number deleted."""
        deleted = 0
        while deleted < limit:
            runs = query(connection, self._ended, (MAX_ROWS,))
            if not runs:
                break
            for token, expired in runs:
                deleted += self._delete_of(connection, token, limit - deleted, all_of_them=bool(expired))
        return deleted

    def delete_runs(self, connection: DriverConnection) -> None:
        """Delete ended runs without claims; a batch of them."""
        tokens = sorted(int(token) for (token,) in query(connection, self._empty, (MAX_ROWS,)))
        if tokens:
            execute(
                connection,
                self._text(f"DELETE FROM {self._runs} WHERE token IN {listed(len(tokens))}"),
                tokens,
            )

    def _delete_of(self, connection: DriverConnection, token: int, limit: int, *, all_of_them: bool) -> int:
        deleted = 0
        select = self._all_of if all_of_them else self._unfinished_of
        while deleted < limit:
            found = query(connection, select, (token, min(limit - deleted, MAX_ROWS)))
            hashes = sorted(bytes(row[0]) for row in found)
            if not hashes:
                break
            # Only this run's: another run may have taken over the claim meanwhile.
            delete = f"DELETE FROM {self._claims} WHERE key_hash IN {listed(len(hashes))} AND run = ?"
            deleted += execute(connection, self._text(delete), (*hashes, token))
        return deleted
