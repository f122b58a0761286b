"""SqlRunStore: runs and claims in MySQL, MariaDB, PostgreSQL or SQLite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Self, TypeVar

from sqlalchemy import Engine

from idempotent.adapters.spark.ledger.claims import Holder, Owner, Owners, PendingRow
from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.runs import RunChange, RunRef, RunRow, Standing
from idempotent.adapters.spark.ledger.sql.claims import ClaimTable
from idempotent.adapters.spark.ledger.sql.garbage import Garbage
from idempotent.adapters.spark.ledger.sql.runs import RunTable
from idempotent.adapters.spark.ledger.store import RunStore
from idempotent.errors import StoreReplacedError
from idempotent.forks import free_in_child
from idempotent.stores.sql.connections import Connections
from idempotent.stores.sql.cursor import DriverConnection
from idempotent.stores.sql.engines import engine_from

T = TypeVar("T")


class SqlRunStore(RunStore):
    """Each call one statement in autocommit, or two where the first does not return enough; PREPARE is a transaction.

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
        self._file = _SqliteFile.of(self._engine)
        self._connections = Connections(self._engine, self._table)
        self._tables: _Tables | None = None
        self._lock = free_in_child(Lock())

    def newest(self, consumer: str, run_id: str) -> RunRow | None:
        return self._run(lambda db, on: on.runs.newest(db, consumer, run_id))

    def find(self, ref: RunRef) -> RunRow | None:
        return self._run(lambda db, on: on.runs.find(db, ref))

    def standings(self, tokens: Collection[int]) -> Mapping[int, Standing]:
        return self._run(lambda db, on: on.runs.standings(db, tokens))

    def count_owned(self, ref: RunRef) -> int:
        return self._run(lambda db, on: on.claims.marked(db, ref.token, ref.epoch))

    def insert_run(self, ref: RunRef, newest: int | None, fingerprint: bytes | None, lease_us: int) -> None:
        del newest  # the unique index on (run, generation) decides
        self._run(lambda db, on: on.runs.insert(db, ref, fingerprint, lease_us))

    def change_run(self, token: int, change: RunChange) -> bool:
        if change.owned is None or change.epoch is None:
            return self._run(lambda db, on: on.runs.change(db, token, change))
        owned, epoch = change.owned, change.epoch

        def counted(db: DriverConnection, on: _Tables) -> bool:
            # A statement of its own after the lock: one that waited for it would count by an older snapshot.
            on.runs.lock(db, token)
            return on.claims.marked(db, token, epoch) == owned and on.runs.change(db, token, change)

        return self._run(counted, atomically=True)

    def insert_owned(
        self, owner: Owner, hashes: Sequence[bytes], fingerprints: Sequence[bytes | None] | None
    ) -> Owners:
        return self._run(lambda db, on: on.claims.insert_owned(db, owner, hashes, fingerprints))

    def read_owned(self, hashes: Sequence[bytes]) -> Owners:
        return self._run(lambda db, on: on.claims.read_owned(db, hashes))

    def steal(self, owner: Owner, seen: Owner, keys: Sequence[tuple[bytes, bytes | None]]) -> set[bytes]:
        return self._run(lambda db, on: on.claims.steal(db, owner, seen, keys))

    def insert_pending(self, holder: Holder, hashes: Sequence[bytes]) -> dict[bytes, PendingRow]:
        return self._run(lambda db, on: on.claims.insert_pending(db, holder, hashes))

    def take_over(self, holder: Holder, seen: Sequence[PendingRow]) -> set[bytes]:
        return self._run(lambda db, on: on.claims.take_over(db, holder, seen))

    def finish(self, attempt: bytes, results: Sequence[tuple[bytes, bytes | None]]) -> set[bytes]:
        return self._run(lambda db, on: on.claims.finish(db, attempt, results))

    def renew_pending(self, attempt: bytes, hashes: Sequence[bytes], lease_us: int) -> set[bytes]:
        return self._run(lambda db, on: on.claims.renew(db, attempt, hashes, lease_us))

    def give_up(self, attempt: bytes, hashes: Sequence[bytes]) -> None:
        self._run(lambda db, on: on.claims.give_up(db, attempt, hashes))

    def abandoned(self) -> Sequence[int]:
        return self._run(lambda db, on: on.garbage.abandoned(db))

    def collect(self, limit: int) -> int:
        deleted = self._run(lambda db, on: on.garbage.delete_claims(db, limit))
        self._run(lambda db, on: on.garbage.delete_runs(db))
        return deleted

    def close(self) -> None:
        self._connections.close()
        self._engine.dispose()

    def _run(self, work: Callable[[DriverConnection, _Tables], T], *, atomically: bool = False) -> T:
        with self._lock:
            if self._file is not None and self._file.was_replaced():
                # A new object: connections in use return to the old one, which is never used again.
                self._connections.close()
                self._connections = Connections(self._engine, self._table)
            connections = self._connections
        if self._tables is None:
            self._tables = _Tables(connections, self._table, self.retention.us)
        tables = self._tables
        run = connections.run_atomically if atomically else connections.run
        return run(lambda db: work(db, tables))


class _Tables:
    """The statements, which depend on the database's dialect."""

    def __init__(self, connections: Connections, table: str, retention_us: int) -> None:
        dialect = connections.dialect
        self.runs = RunTable(dialect, table)
        self.claims = ClaimTable(dialect, table, self.runs.open_run())
        self.garbage = Garbage(dialect, self.runs.name, self.claims.name, retention_us)


class _SqliteFile:
    """A connection keeps the file that it opened: what it writes is lost once that file is deleted or replaced.

    Args:
        path: of the ledger's file.
    """

    def __init__(self, path: Path) -> None:
        """Remember no file yet."""
        self._path = path
        self._seen: tuple[int, int] | None = None

    @classmethod
    def of(cls, engine: Engine) -> Self | None:
        """The file of an SQLite engine; None for another database, or a URI filename."""
        name = engine.url.database
        if engine.dialect.name != "sqlite" or not name or name.startswith("file:"):
            return None
        return cls(Path(name).absolute())

    def was_replaced(self) -> bool:
        """Whether the path has another file than at the last call.

        Raises:
            StoreReplacedError: the file was there at the last call, and is gone.
        """
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            if self._seen is None:
                return False
            raise StoreReplacedError(
                f"the ledger's file {self._path} is gone: restore it, or begin new runs in another ledger"
            ) from None
        now = (stat.st_dev, stat.st_ino)
        before, self._seen = self._seen, now
        return before not in (None, now)
