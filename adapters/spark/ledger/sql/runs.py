"""RunTable: the table `<table>_runs`, on a driver connection in autocommit."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Any, Final

from idempotent.adapters.spark.ledger.runs import RunChange, RunRef, RunRow, RunState, Standing
from idempotent.adapters.spark.ledger.sql.insert_if_absent import listed
from idempotent.keys import Key, KeySpace
from idempotent.schema import runs_name
from idempotent.stores.sql.cursor import DriverConnection, Row, execute, query
from idempotent.stores.sql.dialects import SqlDialect

_COLUMNS: Final = "token, generation, state, epoch, fingerprint, output_ref, lease_until, began_at"
_PREPARED: Final = "prepared_epoch, manifest"


class RunTable:
    """One row for each generation of a run.

    Args:
        dialect: what differs between the databases.
        table: validated name of the key table it stands beside.
    """

    def __init__(self, dialect: SqlDialect, table: str) -> None:
        """Make the constant statements."""
        self.name: Final = dialect.quoted(runs_name(table))
        self._dialect = dialect
        text, now = dialect.markers, dialect.now_us
        row = f"SELECT {_COLUMNS}, {_PREPARED}, {now} FROM {self.name}"
        self._newest = text(f"{row} WHERE run_hash = ? ORDER BY generation DESC LIMIT 1")
        self._find = text(f"{row} WHERE token = ?")
        self._insert = text(
            f"INSERT INTO {self.name}"
            " (token, run_hash, generation, k, state, epoch, fingerprint, began_at, update_at, lease_until)"
            f" VALUES (?, ?, ?, ?, {RunState.OPEN:d}, 1, ?, {now}, {now}, {now} + ?) "
            + (
                "ON DUPLICATE KEY UPDATE token = token"
                if dialect.name == "mysql"
                else "ON CONFLICT DO NOTHING"
            )
        )
        lock = "" if dialect.name == "sqlite" else " FOR UPDATE"
        self._lock: Final = text(f"SELECT token FROM {self.name} WHERE token = ?{lock}")
        self._standings = lru_cache(maxsize=64)(self._standings_of)

    def newest(self, connection: DriverConnection, consumer: str, run_id: str) -> RunRow | None:
        """The row of the greatest generation."""
        rows = query(connection, self._newest, (_key(consumer, run_id).hash,))
        return _row(consumer, run_id, rows[0]) if rows else None

    def find(self, connection: DriverConnection, ref: RunRef) -> RunRow | None:
        """The row with this token."""
        rows = query(connection, self._find, (ref.token,))
        return _row(ref.consumer, ref.run_id, rows[0]) if rows else None

    def standings(self, connection: DriverConnection, tokens: Collection[int]) -> dict[int, Standing]:
        """How far the runs are that are stored."""
        found = query(connection, self._standings(len(tokens)), tuple(tokens))
        return {
            int(token): Standing(RunState(state), epoch, prepared or 0)
            for token, state, epoch, prepared in found
        }

    def lock(self, connection: DriverConnection, token: int) -> None:
        """Wait for the claims that are under way, and let no other begin before the end of this transaction."""
        query(connection, self._lock, (token,))

    def insert(
        self, connection: DriverConnection, ref: RunRef, fingerprint: bytes | None, lease_us: int
    ) -> None:
        """Insert an OPEN row of epoch 1 if its generation does not exist."""
        key = _key(ref.consumer, ref.run_id)
        text = self._dialect.storable(connection, key.text)
        execute(connection, self._insert, (ref.token, key.hash, ref.generation, text, fingerprint, lease_us))

    def change(self, connection: DriverConnection, token: int, change: RunChange) -> bool:
        """Make a change iff its conditions hold, except that on the number of claims: one UPDATE."""
        now = self._dialect.now_us
        sets = [f"update_at = {now}"]
        values: list[Any] = []
        states = ", ".join(f"{state:d}" for state in sorted(change.within))
        conditions: list[str] = ["token = ?", f"state IN ({states})"]
        wanted: list[Any] = [token]
        if change.to is not None:
            sets.append(f"state = {change.to:d}" + (f", ended_at = {now}" if change.to.is_final else ""))
        if change.to is RunState.PREPARED:
            sets.append("prepared_epoch = epoch")
        if (change.to is not None or change.resumes) and self._dialect.name == "postgresql":
            # Waits for running claims, as a plain UPDATE would not (see `open_run`).
            conditions.append(f"token = (SELECT token FROM {self.name} WHERE token = ? FOR UPDATE)")
            wanted.append(token)
        if change.lease_us is not None:
            sets.append(f"lease_until = {now} + ?")
            values.append(change.lease_us)
        if change.fingerprint is not None:
            sets.append("fingerprint = COALESCE(fingerprint, ?)")
            values.append(change.fingerprint)
        if change.manifest is not None:
            sets.append("manifest = ?")
            values.append(change.manifest)
        if change.output_ref is not None:
            sets.append("output_ref = ?")
            values.append(change.output_ref)
        if change.resumes:
            sets.append("epoch = epoch + 1")
        if change.epoch is not None:
            conditions.append("epoch = ?")
            wanted.append(change.epoch)
        if change.max_age_us is not None:
            conditions.append(f"began_at >= {now} - ?")
            wanted.append(change.max_age_us)
        if change.only_lapsed:
            conditions.append(f"lease_until < {now}")
        statement = f"UPDATE {self.name} SET {', '.join(sets)} WHERE {' AND '.join(conditions)}"
        return execute(connection, self._dialect.markers(statement), (*values, *wanted)) == 1

    def open_run(self) -> str:
        """A condition with two parameters, token and epoch: this run is OPEN and this attempt its newest.

        Both stay so while the statement runs. On PostgreSQL the lock does not block the renewal of a lease, so a change
        of state or epoch takes a stronger one.
        """
        lock = " FOR KEY SHARE" if self._dialect.name == "postgresql" else self._dialect.locking_read
        return f"EXISTS (SELECT 1 FROM {self.name} WHERE token = ? AND epoch = ? AND state = {RunState.OPEN:d}{lock})"

    def _standings_of(self, count: int) -> str:
        return self._dialect.markers(
            f"SELECT token, state, epoch, prepared_epoch FROM {self.name} WHERE token IN {listed(count)}"
        )


def _key(consumer: str, run_id: str) -> Key:
    return KeySpace(consumer, "run").key(run_id)


def _row(consumer: str, run_id: str, row: Row) -> RunRow:
    (
        token,
        generation,
        state,
        epoch,
        fingerprint,
        output_ref,
        lease_until,
        began_at,
        prepared,
        manifest,
        now,
    ) = row
    return RunRow(
        ref=RunRef(consumer, run_id, generation, token, epoch),
        state=RunState(state),
        fingerprint=None if fingerprint is None else bytes(fingerprint),
        output_ref=output_ref,
        lease_until_us=lease_until,
        began_at_us=began_at,
        now_us=int(now),
        prepared=prepared or 0,
        manifest=None if manifest is None else bytes(manifest),
    )
