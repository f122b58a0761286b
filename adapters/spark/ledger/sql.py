"""SqlRunStore: runs and claims in MySQL, MariaDB, PostgreSQL or SQLite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, Final, Self, TypeVar

from sqlalchemy import Engine

from idempotent.adapters.spark.ledger.claims import MAX_ROWS, ClaimState, Holder, Owner, Owners, PendingRow
from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.effect_transactions import EffectTransaction
from idempotent.adapters.spark.ledger.runs import (
    Collected,
    RunChange,
    RunRef,
    RunRow,
    RunState,
    Standing,
    names_in,
    this_driver,
)
from idempotent.adapters.spark.ledger.sql_claims import ClaimTable, listed
from idempotent.adapters.spark.ledger.store import RunStore
from idempotent.errors import StoreReplacedError
from idempotent.forks import free_in_child
from idempotent.keys import SHOWN, Key, KeySpace
from idempotent.schema import runs_name
from idempotent.stores.sql.connections import Connections
from idempotent.stores.sql.cursor import DriverConnection, Row, execute, query, transaction
from idempotent.stores.sql.detached import DetachedConnections
from idempotent.stores.sql.dialects import SqlDialect
from idempotent.stores.sql.engines import engine_from

T = TypeVar("T")
_COLUMNS: Final = "token, generation, state, epoch, fingerprint, output_ref, lease_until, began_at"
_PREPARED: Final = "prepared_epoch, driver"


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
        # For what must not wait long for the transaction of a handler, whose process may be paused.
        self._brief = Connections(self._engine, self._table)
        self._handlers = DetachedConnections(self._engine, autocommit=False)
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
            return self._run(lambda db, on: on.runs.change(db, token, change), lock_s=change.lock_s)
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

    def give_up(
        self, attempt: bytes, hashes: Sequence[bytes], state: ClaimState = ClaimState.PENDING
    ) -> None:
        # A claim that is DONE may be another transaction's by now.
        lock_s = 1 if state is ClaimState.DONE else None
        self._run(lambda db, on: on.claims.give_up(db, attempt, hashes, state), lock_s=lock_s)

    def transaction(self, claim: Callable[[RunStore], T]) -> tuple[T, EffectTransaction]:
        """Begin a transaction, and claim in it: `claim` gets this store within it, and may be called again."""
        connections, tables = self._current()
        return EffectTransaction.begin(
            connections, self._handlers, tables.claims, lambda db: claim(_WithinTransaction(self, db, tables))
        )

    def abandoned(self) -> Sequence[int]:
        return self._run(lambda db, on: on.garbage.abandoned(db))

    def listed(self, states: Collection[RunState], consumer: str | None = None) -> Iterator[RunRow]:
        page = self._page(states, consumer, after=0)
        while page:
            yield from page
            page = self._page(states, consumer, after=page[-1].ref.token)

    def _page(self, states: Collection[RunState], consumer: str | None, after: int) -> list[RunRow]:
        return self._run(lambda db, on: on.runs.page(db, states, consumer, after))

    def collect(self, limit: int) -> Collected:
        claims = self._run(lambda db, on: on.garbage.delete_claims(db, limit))
        return Collected(claims, self._run(lambda db, on: on.garbage.delete_runs(db)))

    def close(self) -> None:
        self._connections.close()
        self._brief.close()
        self._engine.dispose()

    def _run(
        self,
        work: Callable[[DriverConnection, _Tables], T],
        *,
        atomically: bool = False,
        lock_s: int | None = None,
    ) -> T:
        connections, tables = self._current()
        if lock_s is None:
            run = connections.run_atomically if atomically else connections.run
            return run(lambda db: work(db, tables))

        def limited(db: DriverConnection) -> T:
            with transaction(db):
                tables.runs.limit_waits(db, lock_s)
                return work(db, tables)

        return self._brief.run(limited, retry_locked=False)

    def _current(self) -> tuple[Connections, _Tables]:
        with self._lock:
            if self._file is not None and self._file.was_replaced():
                # A new object: connections in use return to the old one, which is never used again.
                self._connections.close()
                self._connections = Connections(self._engine, self._table)
                self._brief.close()
                self._handlers.close()
            connections = self._connections
        if self._tables is None:
            self._tables = _Tables(connections, self._table, self.retention.us)
        return connections, self._tables


class _WithinTransaction(SqlRunStore):
    """The store on the connection of one transaction. Nothing is tried again in it."""

    new_claims = ClaimState.DONE

    def __init__(self, store: SqlRunStore, connection: DriverConnection, tables: _Tables) -> None:
        RunStore.__init__(self, store.where, retention_s=store.retention.seconds)
        self._here = (connection, tables)

    def _run(self, work: Callable[[DriverConnection, _Tables], T], **_: object) -> T:
        return work(*self._here)


class _Tables:
    """The statements, which depend on the database's dialect."""

    def __init__(self, connections: Connections, table: str, retention_us: int) -> None:
        dialect = connections.dialect
        self.runs = RunTable(dialect, table, retention_us)
        self.claims = ClaimTable(dialect, table, self.runs.open_run())
        self.garbage = Garbage(dialect, self.runs.name, self.claims.name)


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


class RunTable:
    """One row for each generation of a run.

    Args:
        dialect: what differs between the databases.
        table: validated name of the key table it stands beside.
        retention_us: how long claims of runs that this client begins are kept, in microseconds; stored with the run.
    """

    def __init__(self, dialect: SqlDialect, table: str, retention_us: int) -> None:
        """Make the constant statements."""
        self.name: Final = dialect.quoted(runs_name(table))
        self._dialect = dialect
        text, now = dialect.markers, dialect.now_us
        row = f"SELECT {_COLUMNS}, {_PREPARED}, {now}, manifest FROM {self.name}"
        self._newest = text(f"{row} WHERE run_hash = ? ORDER BY generation DESC LIMIT 1")
        self._find = text(f"{row} WHERE token = ?")
        self._listed = f"SELECT {_COLUMNS}, {_PREPARED}, {now}, NULL, {dialect.in_utf8('k')} FROM {self.name}"
        self._insert = text(
            f"INSERT INTO {self.name}"
            " (token, run_hash, generation, k, state, epoch, fingerprint, retention, began_at, update_at, lease_until,"
            f" driver) VALUES (?, ?, ?, ?, {RunState.OPEN:d}, 1, ?, {retention_us}, {now}, {now}, {now} + ?, ?)"
            f" {dialect.if_stored(column='token', any_key=True)}"
        )
        lock = "" if dialect.name == "sqlite" else " FOR UPDATE"
        self._lock: Final = text(f"SELECT token FROM {self.name} WHERE token = ?{lock}")
        self._at_least: Final = f"CASE WHEN retention < {retention_us} THEN {retention_us} ELSE retention END"
        self._standings = lru_cache(maxsize=64)(self._standings_of)

    def newest(self, connection: DriverConnection, consumer: str, run_id: str) -> RunRow | None:
        """The row of the greatest generation."""
        rows = query(connection, self._newest, (_key(consumer, run_id).hash,))
        return _row((consumer, run_id), rows[0]) if rows else None

    def find(self, connection: DriverConnection, ref: RunRef) -> RunRow | None:
        """The row with this token."""
        rows = query(connection, self._find, (ref.token,))
        return _row((ref.consumer, ref.run_id), rows[0]) if rows else None

    def standings(self, connection: DriverConnection, tokens: Collection[int]) -> dict[int, Standing]:
        """How far the runs are that are stored."""
        rows = map(_listed_row, query(connection, self._standings(len(tokens)), tuple(tokens)))
        return {row.ref.token: row.standing for row in rows}

    def page(
        self, connection: DriverConnection, states: Collection[RunState], consumer: str | None, after: int
    ) -> list[RunRow]:
        """Some rows in these states, by their tokens, from the one after this token."""
        head = "" if consumer is None else f"{KeySpace(consumer, 'run').name}:"[:SHOWN]
        wanted = ", ".join(f"{state:d}" for state in sorted(states))
        # Not LIKE: a consumer's name may contain its wildcards.
        statement = self._dialect.markers(
            f"{self._listed} WHERE token > ? AND state IN ({wanted}) AND SUBSTR(k, 1, {len(head)}) = ?"
            f" ORDER BY token LIMIT {MAX_ROWS:d}"
        )
        values = (after, self._dialect.storable(connection, head))
        return [*map(_listed_row, query(connection, statement, values))]

    def lock(self, connection: DriverConnection, token: int) -> None:
        """Wait for the claims that are under way, and let no other begin before the end of this transaction."""
        query(connection, self._lock, (token,))

    def limit_waits(self, connection: DriverConnection, seconds: int) -> None:
        """Let this transaction wait so long for locks: on SQLite as its URL says."""
        if self._dialect.name == "mysql":
            execute(connection, f"SET SESSION innodb_lock_wait_timeout={seconds:d}")
        elif self._dialect.name == "postgresql":
            # Its limit for a lock begins again with each transaction that has the lock meanwhile.
            limits = f"set_config('lock_timeout', '{seconds}s', true)"
            limits += f", set_config('statement_timeout', '{seconds + 1}s', true)"
            query(connection, f"SELECT {limits}")

    def insert(
        self, connection: DriverConnection, ref: RunRef, fingerprint: bytes | None, lease_us: int
    ) -> None:
        """Insert an OPEN row of epoch 1 if its generation does not exist."""
        key = _key(ref.consumer, ref.run_id)
        text = self._dialect.storable(connection, key.text)
        values = (ref.token, key.hash, ref.generation, text, fingerprint, lease_us, this_driver())
        execute(connection, self._insert, values)

    def change(self, connection: DriverConnection, token: int, change: RunChange) -> bool:
        """Make a change iff its conditions hold, except that on the number of claims: one UPDATE."""
        now = self._dialect.now_us
        sets = [f"update_at = {now}"]
        values: list[Any] = []
        states = ", ".join(f"{state:d}" for state in sorted(change.within))
        conditions: list[str] = ["token = ?", f"state IN ({states})"]
        wanted: list[Any] = [token]
        if change.to is not None:
            sets.append(
                f"state = {change.to:d}" + (f", expires_at = {now} + retention" if change.to.is_final else "")
            )
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
        driver = this_driver() if change.resumes else None
        stored = {"manifest": change.manifest, "output_ref": change.output_ref, "driver": driver}
        for column, value in stored.items():
            if value is not None:
                sets.append(f"{column} = ?")
                values.append(value)
        if change.resumes:
            sets.append(f"epoch = epoch + 1, retention = {self._at_least}")
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
        return self._dialect.markers(f"{self._listed} WHERE token IN {listed(count)}")


def _key(consumer: str, run_id: str) -> Key:
    return KeySpace(consumer, "run").key(run_id)


def _listed_row(row: Row) -> RunRow:
    """A row that has its key in the place of the names."""
    return _row(names_in(bytes(row[-1]).decode()), row[:-1])


def _row(names: tuple[str, str], row: Row) -> RunRow:
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
        driver,
        now,
        manifest,
    ) = row
    return RunRow(
        ref=RunRef(*names, generation, token, epoch),
        state=RunState(state),
        fingerprint=None if fingerprint is None else bytes(fingerprint),
        output_ref=output_ref,
        lease_until_us=lease_until,
        began_at_us=began_at,
        now_us=int(now),
        prepared=prepared or 0,
        manifest=None if manifest is None else bytes(manifest),
        driver=driver or "",
    )


class Garbage:
    """Finds rows without locks, and deletes them by primary key.

    Args:
        dialect: what differs between the databases.
        runs: name of the table of runs.
        claims: name of the table of claims.
    """

    def __init__(self, dialect: SqlDialect, runs: str, claims: str) -> None:
        """Make the statements."""
        self._text = text = dialect.markers
        self._claims, self._runs = claims, runs
        now = dialect.now_us
        self._abandoned: Final = text(
            f"SELECT token FROM {runs} WHERE expires_at IS NULL AND state = {RunState.OPEN:d}"
            f" AND began_at + retention < {now} AND lease_until < {now} LIMIT ?"
        )
        # Run by run: claims that count are never read.
        expired = f"r.expires_at < {now}"
        not_done = f"c.state <> {ClaimState.DONE:d}"
        self._ended: Final = text(
            f"SELECT r.token, {expired} FROM {runs} r WHERE r.expires_at IS NOT NULL"
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

    def delete_runs(self, connection: DriverConnection) -> int:
        """Delete ended runs without claims; the number deleted of a batch of them."""
        tokens = sorted(int(token) for (token,) in query(connection, self._empty, (MAX_ROWS,)))
        if not tokens:
            return 0
        delete = f"DELETE FROM {self._runs} WHERE token IN {listed(len(tokens))}"
        return execute(connection, self._text(delete), tokens)

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
