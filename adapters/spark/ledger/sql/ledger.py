"""SqlLedger: runs and claims in MySQL, MariaDB, PostgreSQL or SQLite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Lock
from typing import TypeVar

from idempotent.adapters.spark.ledger.base import Ledger
from idempotent.adapters.spark.ledger.claims import ClaimState, Owners, PendingRow
from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.holding import Holder
from idempotent.adapters.spark.ledger.runs import RunChange, RunRef, RunRow, RunState
from idempotent.adapters.spark.ledger.sql.claims import ClaimTable
from idempotent.adapters.spark.ledger.sql.garbage import Garbage
from idempotent.adapters.spark.ledger.sql.runs import RunTable
from idempotent.adapters.spark.ledger.sql.sqlite_file import SqliteFile
from idempotent.stores.sql.connections import Connections, engine_from
from idempotent.stores.sql.cursor import DriverConnection

T = TypeVar("T")


class SqlLedger(Ledger):
    """Each call one statement in autocommit, or two where the first does not return enough.

    Args:
        config: where the ledger is.

    Raises:
        ConfigurationError: the URL names no supported database.
        MissingExtraError: the database's driver is not installed.
    """

    def __init__(self, config: StoreConfig) -> None:
        """Connect at the first use."""
        super().__init__(config.where, retention_s=config.retention_s)
        self._engine = engine_from(config.url)
        self._table = config.table
        self._file = SqliteFile.of(self._engine)
        self._connections = Connections(self._engine, self._table)
        self._tables: _Tables | None = None
        self._lock = Lock()

    def counts(self, ref: RunRef) -> dict[ClaimState, int]:
        return self._run(lambda db, on: on.claims.counts(db, ref.token))

    def gc(self, limit: int = 10_000) -> int:
        for token in self._run(lambda db, on: on.garbage.abandoned(db)):
            self.abort_lapsed(token)
        deleted = self._run(lambda db, on: on.garbage.delete_claims(db, limit))
        self._run(lambda db, on: on.garbage.delete_runs(db))
        return deleted

    def close(self) -> None:
        self._connections.close()
        self._engine.dispose()

    def _newest(self, consumer: str, run_id: str) -> RunRow | None:
        return self._run(lambda db, on: on.runs.newest(db, consumer, run_id))

    def _find(self, ref: RunRef) -> RunRow | None:
        return self._run(lambda db, on: on.runs.find(db, ref))

    def _states(self, tokens: Collection[int]) -> Mapping[int, RunState]:
        return self._run(lambda db, on: on.runs.states(db, tokens))

    def _insert_run(self, ref: RunRef, newest: int | None, fingerprint: bytes | None, lease_us: int) -> None:
        del newest  # the unique index on (run, generation) decides
        self._run(lambda db, on: on.runs.insert(db, ref, fingerprint, lease_us))

    def _change_run(self, token: int, change: RunChange) -> bool:
        return self._run(lambda db, on: on.runs.change(db, token, change))

    def _insert_owned(
        self, token: int, hashes: Sequence[bytes], fingerprints: Sequence[bytes | None] | None
    ) -> Owners:
        return self._run(lambda db, on: on.claims.insert_owned(db, token, hashes, fingerprints))

    def _read_owned(self, hashes: Sequence[bytes]) -> Owners:
        return self._run(lambda db, on: on.claims.read_owned(db, hashes))

    def _steal(self, token: int, from_token: int, keys: Sequence[tuple[bytes, bytes | None]]) -> set[bytes]:
        return self._run(lambda db, on: on.claims.steal(db, token, from_token, keys))

    def _insert_pending(self, holder: Holder, hashes: Sequence[bytes]) -> dict[bytes, PendingRow]:
        return self._run(lambda db, on: on.claims.insert_pending(db, holder, hashes))

    def _take_over(self, holder: Holder, seen: Sequence[PendingRow]) -> set[bytes]:
        return self._run(lambda db, on: on.claims.take_over(db, holder, seen))

    def _finish(self, attempt: bytes, results: Sequence[tuple[bytes, bytes | None]]) -> set[bytes]:
        return self._run(lambda db, on: on.claims.finish(db, attempt, results))

    def _renew_pending(self, attempt: bytes, hashes: Sequence[bytes], lease_us: int) -> set[bytes]:
        return self._run(lambda db, on: on.claims.renew(db, attempt, hashes, lease_us))

    def _give_up(self, attempt: bytes, hashes: Sequence[bytes]) -> None:
        self._run(lambda db, on: on.claims.give_up(db, attempt, hashes))

    def _run(self, work: Callable[[DriverConnection, _Tables], T]) -> T:
        with self._lock:
            if self._file is not None and self._file.was_replaced():
                # A new object: connections in use return to the old one, which is never used again.
                self._connections.close()
                self._connections = Connections(self._engine, self._table)
            connections = self._connections
        if self._tables is None:
            self._tables = _Tables(connections, self._table, self._retention_us)
        tables = self._tables
        return connections.run(lambda db: work(db, tables))


class _Tables:
    """The statements, which depend on the database's dialect."""

    def __init__(self, connections: Connections, table: str, retention_us: int) -> None:
        dialect = connections.dialect
        self.runs = RunTable(dialect, table)
        self.claims = ClaimTable(dialect, table, self.runs.open_run())
        self.garbage = Garbage(dialect, self.runs.name, self.claims.name, retention_us)
