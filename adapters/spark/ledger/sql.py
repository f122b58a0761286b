"""SqlRunStore: runs and claims in MySQL, MariaDB, PostgreSQL or SQLite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from pathlib import Path
from threading import Lock
from typing import Any, Final, Self, TypeVar

from idempotent.adapters.spark.ledger.claims import MAX_ROWS, ClaimState
from idempotent.adapters.spark.ledger.config import StoreConfig
from idempotent.adapters.spark.ledger.effect_transactions import EffectTransaction
from idempotent.adapters.spark.ledger.runs import (
    Collected,
    RunChange,
    RunRef,
    RunRow,
    RunState,
    names_in,
    run_key,
    this_driver,
)
from idempotent.adapters.spark.ledger.sql_claims import SqlClaims, places
from idempotent.adapters.spark.ledger.store import RunStore
from idempotent.errors import StoreReplacedError
from idempotent.forks import free_in_child
from idempotent.keys import SHOWN, KeySpace
from idempotent.stores.sql.connections import Connections
from idempotent.stores.sql.cursor import DriverConnection, Row, execute, query, transaction
from idempotent.stores.sql.detached import DetachedConnections
from idempotent.stores.sql.engines import engine_from

T = TypeVar("T")
# As `RunRow.stored` takes them, but for the store's clock and the manifest.
_COLUMNS: Final = (
    "token, generation, state, epoch, fingerprint, output_ref, lease_until, began_at, prepared_epoch, driver"
)


class SqlRunStore(SqlClaims):
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
        self._file: tuple[int, int] | None = None
        self._connections = Connections(self._engine, self._table)
        # For what must not wait long for the transaction of a handler, whose process may be paused.
        self._brief = Connections(self._engine, self._table)
        self._handlers = DetachedConnections(self._engine, autocommit=False)
        self._lock = free_in_child(Lock())
        self._transaction: DriverConnection | None = None

    # Runs: one row for each generation

    def newest(self, consumer: str, run_id: str, run_hash: bytes | None = None) -> RunRow | None:
        where = "WHERE run_hash = ? ORDER BY generation DESC LIMIT 1"
        run_hash = run_hash or run_key(consumer, run_id).hash
        rows = self._query(self._select("manifest", where), (run_hash,))
        return RunRow.stored((consumer, run_id), rows[0]) if rows else None

    def find(self, ref: RunRef) -> RunRow | None:
        rows = self._query(self._select("manifest", "WHERE token = ?"), (ref.token,))
        return RunRow.stored((ref.consumer, ref.run_id), rows[0]) if rows else None

    def rows(self, tokens: Collection[int]) -> Mapping[int, RunRow]:
        rows = self._query(self._select_listed(f"WHERE token IN {places(len(tokens))}"), tuple(tokens))
        return {row.ref.token: row for row in map(_listed_row, rows)}

    def listed(self, states: Collection[RunState], consumer: str | None = None) -> Iterator[RunRow]:
        head = "" if consumer is None else f"{KeySpace(consumer, 'run').name}:"[:SHOWN]
        wanted = ", ".join(f"{state:d}" for state in sorted(states))
        # Not LIKE: a consumer's name may contain its wildcards.
        where = f"WHERE token > ? AND state IN ({wanted}) AND SUBSTR(k, 1, {len(head)}) = ?"
        statement = self._dialect.markers(self._select_listed(f"{where} ORDER BY token LIMIT {MAX_ROWS:d}"))

        def page(db: DriverConnection, after: int) -> list[RunRow]:
            return [*map(_listed_row, query(db, statement, (after, self._dialect.storable(db, head))))]

        rows = self._run(page, 0)
        while rows:
            yield from rows
            rows = self._run(page, rows[-1].ref.token)

    def insert_run(self, ref: RunRef, newest: int | None, fingerprint: bytes | None, lease_us: int) -> None:
        del newest  # the unique index on (run, generation) decides
        now, key = self._dialect.now_us, run_key(ref.consumer, ref.run_id)
        statement = self._dialect.markers(
            f"INSERT INTO {self._runs}"
            " (token, run_hash, generation, k, state, epoch, fingerprint, retention, began_at, update_at, lease_until,"
            f" driver) VALUES (?, ?, ?, ?, {RunState.OPEN:d}, 1, ?, {self.retention.us}, {now}, {now}, {now} + ?, ?)"
            f" {self._dialect.if_stored(column='token', any_key=True)}"
        )

        def insert(db: DriverConnection) -> None:
            text = self._dialect.storable(db, key.text)
            values = (ref.token, key.hash, ref.generation, text, fingerprint, lease_us, this_driver())
            execute(db, statement, values)

        self._run(insert)

    def change_run(self, token: int, change: RunChange) -> bool:
        if change.owned is None or change.epoch is None:
            return self._run(self._change, token, change, lock_s=change.lock_s)
        owned, epoch = change.owned, change.epoch

        def counted(db: DriverConnection) -> bool:
            # Waits for the claims that are under way, and lets no other begin. The count is a statement of its own: one
            # that waited would count by an older snapshot.
            lock = f"SELECT token FROM {self._runs} WHERE token = ?{'' if db.is_sqlite else ' FOR UPDATE'}"
            query(db, self._dialect.markers(lock), (token,))
            return self._marked(db, token, epoch) == owned and self._change(db, token, change)

        return self._run(counted, atomically=True)

    def _change(self, db: DriverConnection, token: int, change: RunChange) -> bool:
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
            # Waits for running claims, as a plain UPDATE would not (see `_open_run`).
            conditions.append(f"token = (SELECT token FROM {self._runs} WHERE token = ? FOR UPDATE)")
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
            us = self.retention.us
            sets.append(
                f"epoch = epoch + 1, retention = CASE WHEN retention < {us} THEN {us} ELSE retention END"
            )
        if change.epoch is not None:
            conditions.append("epoch = ?")
            wanted.append(change.epoch)
        if change.max_age_us is not None:
            conditions.append(f"began_at >= {now} - ?")
            wanted.append(change.max_age_us)
        if change.only_lapsed:
            conditions.append(f"lease_until < {now}")
        statement = f"UPDATE {self._runs} SET {', '.join(sets)} WHERE {' AND '.join(conditions)}"
        return execute(db, self._dialect.markers(statement), (*values, *wanted)) == 1

    # Transactions of handlers

    def transaction(self, claim: Callable[[RunStore], T]) -> tuple[T, EffectTransaction]:
        """Begin a transaction, and claim in it: `claim` gets this store within it, and may be called again."""
        return EffectTransaction.begin(
            self._current(), self._handlers, self._claims, lambda db: claim(self._within(db))
        )

    def _within(self, db: DriverConnection) -> Self:
        """This store on the connection of one transaction. Nothing is tried again in it."""
        store = copy(self)
        vars(store).update(_transaction=db)
        return store

    # Upkeep: rows are found without locks, and deleted by primary key

    def abandoned(self) -> Sequence[int]:
        now = self._dialect.now_us
        rows = self._query(
            f"SELECT token FROM {self._runs} WHERE expires_at IS NULL AND state = {RunState.OPEN:d}"
            f" AND began_at + retention < {now} AND lease_until < {now} LIMIT ?",
            (MAX_ROWS,),
        )
        return [int(token) for (token,) in rows]

    def collect(self, limit: int) -> Collected:
        claims, expired = self._claims, f"r.expires_at < {self._dialect.now_us}"
        not_done = f"state <> {ClaimState.DONE:d}"
        # Run by run: claims that count are never read.
        ended = (
            f"SELECT r.token, {expired} FROM {self._runs} r WHERE r.expires_at IS NOT NULL"
            f" AND ({expired} OR r.state = {RunState.ABORTED:d})"
            f" AND EXISTS (SELECT 1 FROM {claims} c WHERE c.run = r.token AND ({expired} OR c.{not_done})) LIMIT ?"
        )
        deleted = 0
        while deleted < limit and (runs := self._query(ended, (MAX_ROWS,))):
            for token, is_expired in runs:
                which = "" if is_expired else f" AND {not_done}"
                some = f"SELECT key_hash FROM {claims} WHERE run = ?{which} LIMIT ?"
                while deleted < limit:
                    found = self._query(some, (token, min(limit - deleted, MAX_ROWS)))
                    if not found:
                        break
                    hashes = sorted(bytes(row[0]) for row in found)
                    # As they were found: another run may have taken a claim over, or its handler have finished.
                    keys = f"key_hash IN {places(len(hashes))}"
                    delete = f"DELETE FROM {claims} WHERE {keys} AND run = ?{which}"
                    deleted += self._execute(delete, (*hashes, token))
        empty = self._query(
            f"SELECT r.token FROM {self._runs} r WHERE {expired}"
            f" AND NOT EXISTS (SELECT 1 FROM {claims} c WHERE c.run = r.token) LIMIT ?",
            (MAX_ROWS,),
        )
        tokens = sorted(int(token) for (token,) in empty)
        delete = f"DELETE FROM {self._runs} WHERE token IN {places(len(tokens))}"
        return Collected(deleted, self._execute(delete, tokens) if tokens else 0)

    def close(self) -> None:
        self._engine.dispose()  # and with it all connections

    # How

    def _query(self, statement: str, params: Sequence[Any]) -> Sequence[Row]:
        return self._run(query, self._dialect.markers(statement), params)

    def _execute(self, statement: str, params: Sequence[Any]) -> int:
        return self._run(execute, self._dialect.markers(statement), params)

    def _run(
        self, work: Callable[..., T], *arguments: Any, atomically: bool = False, lock_s: int | None = None
    ) -> T:
        """What `work` returns, which is called with a connection and the arguments: again if its statements may be.

        Args:
            work: the statements.
            arguments: passed to `work`.
            atomically: in a transaction.
            lock_s: seconds to wait for a lock; None: as the database does.
        """
        if self._transaction is not None:
            return work(self._transaction, *arguments)
        connections = self._current()
        if lock_s is None:
            run = connections.run_atomically if atomically else connections.run
            return run(work, *arguments)

        def limited(db: DriverConnection) -> T:
            with transaction(db):
                self._limit_waits(db, lock_s)
                return work(db, *arguments)

        return self._brief.run(limited, retry_locked=False)

    def _limit_waits(self, db: DriverConnection, seconds: int) -> None:
        """Limit how long this transaction waits for a lock. On SQLite the timeout in its URL is the limit."""
        if self._dialect.name == "mysql":
            execute(db, f"SET SESSION innodb_lock_wait_timeout={seconds:d}")
        elif self._dialect.name == "postgresql":
            # Its limit for a lock begins again with each transaction that has the lock meanwhile.
            limits = f"set_config('lock_timeout', '{seconds}s', true)"
            limits += f", set_config('statement_timeout', '{seconds + 1}s', true)"
            query(db, f"SELECT {limits}")

    def _current(self) -> Connections:
        with self._lock:
            before, self._file = self._file, self._file_now()
            if before not in (None, self._file):
                # A new object: connections in use return to the old one, which is never used again.
                self._connections.close()
                self._connections = Connections(self._engine, self._table)
                self._brief.close()
                self._handlers.close()
            return self._connections

    def _file_now(self) -> tuple[int, int] | None:
        """Which file an SQLite ledger has. A connection keeps the one that it opened, and what it writes may be lost.

        Raises:
            StoreReplacedError: it had one, and has none any more.
        """
        path = self._engine.url.database
        if self._engine.dialect.name != "sqlite" or not path:
            return None
        with suppress(FileNotFoundError):
            stat = Path(path).stat()
            return stat.st_dev, stat.st_ino
        if self._file is None:
            return None
        raise StoreReplacedError(
            f"the ledger's file {path} is gone: restore it, or begin new runs in another ledger"
        )

    def _select(self, last: str, where: str) -> str:
        return f"SELECT {_COLUMNS}, {self._dialect.now_us}, {last} FROM {self._runs} {where}"

    def _select_listed(self, where: str) -> str:
        """A query for runs of unknown names, without their manifests, as `_listed_row` takes them."""
        return self._select(f"NULL, {self._dialect.in_utf8('k')}", where)


def _listed_row(row: Row) -> RunRow:
    """A row that has its key in the place of the names."""
    return RunRow.stored(names_in(bytes(row[-1]).decode()), row[:-1])
