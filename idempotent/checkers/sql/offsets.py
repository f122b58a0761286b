"""OffsetChecker: stores no keys, only the next offset of each partition, in the transaction of the effects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import groupby
from typing import Final

from idempotent.admin import KeyAdmin
from idempotent.checkers.sql.failures import FailedAttempt
from idempotent.checkers.sql.recorders import ClaimRecorder
from idempotent.checkers.sql.statements import limited_update
from idempotent.checkers.sql.transactional import TransactionalBase
from idempotent.claims import NOBODY, Claim, ClaimRequest, Completion, Decision, Released, Remembers, Verdict
from idempotent.errors import ConfigurationError, StoreError
from idempotent.keys import Key
from idempotent.logs import EventLog
from idempotent.message import Position
from idempotent.observe.log_lines import about_key
from idempotent.schema import offsets_name
from idempotent.stores.sql.cursor import DriverConnection, Row, execute, query
from idempotent.stores.sql.dialects import SqlDialect

log = EventLog(__name__)

_MOST_READ: Final = 500
_GREATEST: Final = 2**63 - 1
_WAIT: Final = Decision(
    Verdict.IN_PROGRESS, retry_after_s=0.1, reason="an earlier message of its partition is not done"
)


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """The next offset of a partition.

    Attributes:
        key: of the partition.
        next_offset: its first message that is not processed.
        age_s: seconds since it was stored.
    """

    key: Key
    next_offset: int
    age_s: float

    @property
    def place(self) -> str:
        """`<topic id>/<partition>`; a hash if the names of topic and group are too long for the table."""
        return self.key.text.rpartition(":")[2]


class OffsetTable:
    """The table `<table>_offsets`. Every change is conditioned on the stored offset, and only a person sets one back.

    Args:
        dialect: the properties of the database.
        table: validated name of the key table to which it belongs.
    """

    def __init__(self, dialect: SqlDialect, table: str) -> None:
        self._dialect = dialect
        name = dialect.located(offsets_name(table))
        self._returns = dialect.name == "postgresql"
        text, now = dialect.markers, dialect.now_us
        self._begin: Final = text(
            f"INSERT INTO {name} (update_at, key_hash, k, next_offset) VALUES ({now}, ?, ?, ?)"
            f" {dialect.if_stored()}"
        )
        change, where = (
            f"next_offset = ?, owner = ?, update_at = {now}",
            "key_hash = ? AND next_offset BETWEEN ? AND ?",
        )
        self._advance: Final = lru_cache(maxsize=8)(partial(limited_update, dialect, name, change, where))
        self._read_many: Final = lru_cache(maxsize=8)(
            lambda count: text(
                f"SELECT key_hash, next_offset FROM {name} WHERE key_hash IN ({', '.join('?' * count)})"
            )
        )
        read = f"SELECT next_offset, owner FROM {name} WHERE key_hash = ?"
        self._read: Final = text(read)
        self._read_all: Final = text(
            f"SELECT key_hash, k, next_offset, {now} - update_at FROM {name} ORDER BY k"
        )
        # In a transaction, a plain read may return the row as it was when the transaction began.
        self._read_newest: Final = text(f"{read}{dialect.locking_read}")

    def begin(self, connection: DriverConnection, starts: Mapping[Key, int | None]) -> dict[Key, int]:
        """The next offset of each partition. One that is not stored yet is stored with its offset in `starts`.

        One that has neither is left out.
        """
        by_hash = {key.hash: key for key in starts}
        hashes = sorted(by_hash)
        offsets = {}
        for at in range(0, len(hashes), _MOST_READ):
            some = hashes[at : at + _MOST_READ]
            for key_hash, offset in query(connection, self._read_many(len(some)), some):
                offsets[by_hash[bytes(key_hash)]] = int(offset)
        for key in [by_hash[each] for each in hashes]:
            if key not in offsets and (start := starts[key]) is not None:
                text = self._dialect.storable(connection, key.text)
                execute(connection, self._begin, (key.hash, text, start))
                # Another process may have stored it meanwhile.
                ((offset, _),) = query(connection, self._read_newest, (key.hash,))
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

    def read_all(self, connection: DriverConnection) -> list[StoredOffset]:
        """All partitions, sorted by topic and group."""
        return [
            StoredOffset(Key(bytes(key_hash), text), int(offset), age_us / 1e6)
            for key_hash, text, offset, age_us in query(connection, self._read_all)
        ]

    def read(self, connection: DriverConnection, key: Key, *, newest: bool = False) -> Row | None:
        """(next offset, owner of the last change) of a partition; None: `begin` has not stored it."""
        rows: Sequence[Row] = query(connection, self._read_newest if newest else self._read, (key.hash,))
        return rows[0] if rows else None


class OffsetRecorder(ClaimRecorder):
    """One row for each partition, in a table that belongs to the key table."""

    @cached_property
    def offsets(self) -> OffsetTable:
        """The table of offsets.

        Raises:
            StoreError: the database did not answer when asked for its version.
        """
        return OffsetTable(self._store.connections.dialect, self._store.table)

    def claim(
        self, driver: DriverConnection, requests: Sequence[ClaimRequest], wait_s: float
    ) -> list[Decision]:
        decisions: dict[Key, Decision] = {}
        for partition, run in _runs(requests):
            decisions |= self._claim_run(driver, partition, run, wait_s)
        return [decisions[request.key] for request in requests]

    def _claim_run(
        self,
        driver: DriverConnection,
        partition: Key,
        run: list[tuple[ClaimRequest, Position]],
        wait_s: float,
    ) -> dict[Key, Decision]:
        """Advance one partition past the first messages that follow each other without a gap, in one statement."""
        following = _following(run)
        first, last = following[0][1], following[-1][1]
        owner = following[0][0].owner
        between = (first.expected, first.offset)
        decisions = {request.key: _WAIT for request, _ in run}
        if self.offsets.advance(driver, partition, between, last.offset + 1, owner, wait_s):
            for request, position in following:
                decisions[request.key] = Decision(
                    Verdict.ACQUIRED, Claim(request.key, position.offset, owner, partition=partition)
                )
            return decisions
        found = self.offsets.read(driver, partition, newest=True)
        if found is None:
            raise StoreError(f"{partition} is not stored yet: call begin() before its first message")
        done = [request for request, position in run if position.offset < found[0]]
        decisions |= {request.key: Decision(Verdict.DUPLICATE) for request in done}
        rest = run[len(done) :]
        if done and rest and rest[0][1].expected <= found[0]:
            decisions |= self._claim_run(driver, partition, rest, wait_s)
        return decisions

    def complete(self, driver: DriverConnection, completion: Completion, took_s: float) -> None:
        """Do nothing: a partition cannot store results."""

    def stored(self, driver: DriverConnection, claims: Sequence[Claim]) -> set[Claim]:
        moved = {(claim.partition, claim.owner) for claim in claims if claim.partition}
        rows = [(self.offsets.read(driver, partition), owner) for partition, owner in moved]
        are_stored = rows and all(row and row[1] and bytes(row[1]) == owner for row, owner in rows)
        return set(claims) if are_stored else set()

    def mark_committed_dead(self, driver: DriverConnection, claim: Claim) -> Released:
        # The commit has advanced the offset, and no stored key could wait for a person.
        del driver
        log.error("transaction_escaped", extra=about_key(claim.key))
        return Released(owned=True, dead=True)

    def count_failure(self, failed: FailedAttempt) -> Released:
        # An offset has no state to change: the adapter waits, or dead-letters the message and advances past it.
        self._store.connections.run_atomically(self.failures.count, failed)
        return failed.released

    def forget(self, driver: DriverConnection, claim: Claim) -> None:
        del driver, claim
        raise ConfigurationError("an OffsetChecker has no savepoints")

    def delete_expired(self, driver: DriverConnection, limit: int) -> int:
        self.failures.delete_expired(driver, limit)
        return 0


def _runs(requests: Sequence[ClaimRequest]) -> Iterator[tuple[Key, list[tuple[ClaimRequest, Position]]]]:
    """The requests by partition, sorted by offset; the partitions in the same order in every process."""
    placed = []
    for request in requests:
        if request.partition is None or request.position is None:
            raise ConfigurationError(
                "an OffsetChecker needs messages with a Position, as the Kafka adapter's have"
            )
        placed.append((request, request.partition, request.position))
    placed.sort(key=lambda each: (each[1].hash, each[2].offset))
    for partition, run in groupby(placed, key=lambda each: each[1]):
        yield partition, [(request, position) for request, _, position in run]


def _following(run: list[tuple[ClaimRequest, Position]]) -> list[tuple[ClaimRequest, Position]]:
    """The first messages of a run that follow each other without a gap."""
    count = 1
    while count < len(run) and run[count][1].expected == run[count - 1][1].offset + 1:
        count += 1
    return run[:count]


class OffsetChecker(TransactionalBase):
    """Stores one row for each partition instead of each message, for adapters that read partitions in order (Kafka).

    The next offset advances in the transaction of the handler's writes, so a message that is read again is recognised
    by its offset. On assignment the adapter starts at the stored offset, whatever the broker has committed.

    A message that its producer sent twice has two offsets and runs twice; use `TransactionalSqlChecker` where producers
    resend. Messages of a partition take effect in order: one that fails delays those after it until it is processed
    or dead. Results are not stored.

    Args:
        engine_or_url: as for `TransactionalSqlChecker`; the database of the handlers' writes.
        table: name of the key table; offsets are in `<table>_offsets`. `idempotent.migrations.upgrade` makes both.
        schema: where the tables are; see `TransactionalSqlChecker`.
        retention_s: seconds the attempts of a failed message are remembered.
        dead_retention_s: seconds a DEAD key is remembered; None: until a person resolves it.
        lock_timeout_s: seconds a message waits for another transaction that advances its partition.
        savepoints: see `TransactionalSqlChecker`.
        strict: see `TransactionalSqlChecker`.

    Raises:
        ConfigurationError: an invalid URL, table name or duration.
        MissingExtraError: the database's driver is not installed.
    """

    remembers = Remembers.POSITIONS
    recorder_type = OffsetRecorder
    _recorder: OffsetRecorder

    def admin(self) -> KeyAdmin:
        """An OffsetChecker keeps no keys.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            "an OffsetChecker keeps the offsets of partitions, not keys: "
            f"`idempotent offsets show {self.store.command_options}` shows them; for the "
            "keys in the same tables leave offsets+ out of the URL"
        )

    def begin(self, starts: Mapping[Key, int | None]) -> dict[Key, int]:
        """The next offset to read in each partition. One that is not stored yet starts at its offset in `starts`.

        One that is not stored and has None in `starts` is left out.

        Raises:
            StoreError: the database did not answer.
        """
        return self.store.connections.run_atomically(self._recorder.offsets.begin, starts)

    def stored(self) -> list[StoredOffset]:
        """The offsets of all partitions, of all consumers with this table.

        Raises:
            StoreError: the database did not answer.
        """
        return self.store.connections.run(self._recorder.offsets.read_all)

    def set(self, partition: Key, offset: int) -> bool:
        """Let a partition continue at another offset. A running worker goes there within seconds.

        Set back, messages run again; set forward, those between do not run. False: the partition is not stored.

        Raises:
            StoreError: the database did not answer.
        """
        return self._advance(partition, (0, _GREATEST), offset)

    def skip(self, partition: Key, position: Position) -> bool:
        """Advance past a message that will not be processed, such as a dead letter whose copy is confirmed.

        Returns whether it was the next message of its partition.

        Raises:
            StoreError: the database did not answer.
        """
        return self._advance(partition, (position.expected, position.offset), position.offset + 1)

    def _advance(self, partition: Key, between: tuple[int, int], to: int) -> bool:
        return self.store.connections.run_atomically(
            self._recorder.offsets.advance, partition, between, to, NOBODY, self.lock_timeout_s
        )
