"""OffsetChecker: no keys at all, only how far each partition has come, in the transaction of the effects."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Final

from idempotent.checkers.sql.failures import FailureTable
from idempotent.checkers.sql.offsettable import OffsetTable
from idempotent.checkers.sql.transactional import TransactionalSqlChecker
from idempotent.checkers.sql.unit import Unit
from idempotent.claims import Claim, ClaimRequest, Completion, Decision, Failure, Released, Verdict
from idempotent.errors import ConfigurationError, StoreError
from idempotent.keys import Key
from idempotent.message import Position
from idempotent.stores.sql.cursor import DriverConnection

log = logging.getLogger(__name__)

_NOT_YET_S: Final = 0.1


class OffsetChecker(TransactionalSqlChecker):
    """One row a partition instead of one a message, for adapters that read partitions in order (Kafka).

    The next offset moves on in the transaction of the handler's writes, so a message that is read again is known by
    its offset alone. On assignment the adapter reads on from the stored offset, whatever the broker has committed.

    It knows nothing of messages that were sent twice: those are two offsets. Use `TransactionalSqlChecker` where
    producers repeat themselves. Messages of a partition take effect in order; one that fails holds back those behind
    it until it is processed or dead. Results are not stored.

    Args:
        engine_or_url: an SQLAlchemy engine, URL or `sessionmaker`; the database of the handlers' writes.
        table: name of the key table beside which `<table>_offsets` stands; `idempotent.migrations.upgrade` makes it.
        retention_s: seconds the attempts of a failed message are remembered.
        lock_timeout_s: seconds a message waits for another transaction that moves its partition.
        strict: see `TransactionalSqlChecker`.

    Raises:
        ConfigurationError: a wrong URL, table name or duration.
        MissingExtraError: the database's driver is not installed.
    """

    keeps_positions = True

    @cached_property
    def _offsets(self) -> OffsetTable:
        return OffsetTable(self.store.connections.dialect, self.store.table)

    @cached_property
    def _failures(self) -> FailureTable:
        retention_us = max(int(self.retention_s * 1_000_000), 1)
        return FailureTable(self.store.connections.dialect, self.store.table, retention_us)

    def begin(self, starts: Mapping[Key, int]) -> dict[Key, int]:
        """Where to read on in each partition. One that is new to the store begins where `starts` says.

        Raises:
            StoreError: the database did not answer.
        """
        return self.store.connections.run_atomically(self._offsets.begin, starts)

    def skip(self, partition: Key, position: Position) -> bool:
        """Move on past a message that will not be processed, such as a dead letter whose copy is confirmed.

        Returns whether its turn had come.

        Raises:
            StoreError: the database did not answer.
        """
        to, between = position.offset + 1, (position.expected, position.offset)
        return self.store.connections.run_atomically(
            lambda driver: self._offsets.advance(
                driver, partition, between, to, bytes(16), self.lock_timeout_s
            )
        )

    def _claim_in(self, unit: Unit, requests: Sequence[ClaimRequest], wait_s: float) -> list[Decision]:
        decisions: dict[Key, Decision] = {}
        for partition, run in _runs(requests):
            decisions |= self._claim_run(unit.driver, partition, run, wait_s)
        return [decisions[request.key] for request in requests]

    def _claim_run(
        self,
        driver: DriverConnection,
        partition: Key,
        run: list[tuple[ClaimRequest, Position]],
        wait_s: float,
    ) -> dict[Key, Decision]:
        """Move one partition over as many of these messages as follow each other, in one statement."""
        following = _following(run)
        first, last = following[0][1], following[-1][1]
        owner = following[0][0].owner
        between = (first.expected, first.offset)
        decisions = {request.key: _not_yet() for request, _ in run}
        if self._offsets.advance(driver, partition, between, last.offset + 1, owner, wait_s):
            for request, position in following:
                decisions[request.key] = Decision(
                    Verdict.ACQUIRED, Claim(request.key, position.offset, owner, partition=partition)
                )
            return decisions
        found = self._offsets.read(driver, partition, newest=True)
        if found is None:
            raise StoreError(f"{partition} has not begun in the store: begin() comes before its messages")
        done = [request for request, position in run if position.offset < found[0]]
        decisions |= {request.key: Decision(Verdict.DUPLICATE) for request in done}
        rest = run[len(done) :]
        if done and rest and rest[0][1].expected <= found[0]:
            decisions |= self._claim_run(driver, partition, rest, wait_s)
        return decisions

    def _store_result(self, unit: Unit, completion: Completion) -> None:
        """A partition has no place for results."""

    def _are_committed(self, driver: DriverConnection, claims: Sequence[Claim]) -> bool:
        moved = {(claim.partition, claim.owner) for claim in claims if claim.partition}
        rows = [(self._offsets.read(driver, partition), owner) for partition, owner in moved]
        return bool(rows) and all(row and row[1] and bytes(row[1]) == owner for row, owner in rows)

    def _escaped(self, claims: Sequence[Claim]) -> set[Claim]:
        if not claims:
            return set()
        committed = self.store.connections.run(self._are_committed, claims)
        return set(claims) if committed else set()

    def _condemn(self, claim: Claim) -> Released:
        # The offset has moved on with whatever was committed; there is no key to wait for a person.
        log.error("transaction_escaped", extra={"position": str(claim.key)})
        return Released(owned=True, dead=True)

    def _note_failure(self, driver: DriverConnection, claim: Claim, failure: Failure) -> Released:
        attempts = self._failures.note(driver, claim, failure.error)
        return Released(owned=True, attempts=attempts, dead=failure.kills(attempts))

    def _garbage_collect(self, limit: int) -> int:
        self.store.connections.run(self._failures.delete_expired, limit)
        return 0


def _runs(requests: Sequence[ClaimRequest]) -> Iterator[tuple[Key, list[tuple[ClaimRequest, Position]]]]:
    """The requests by partition, in the order of their offsets; partitions in one order for everybody."""
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
    """The beginning of a run in which each message comes right after the one before it."""
    count = 1
    while count < len(run) and run[count][1].expected == run[count - 1][1].offset + 1:
        count += 1
    return run[:count]


def _not_yet() -> Decision:
    """An earlier message of the partition is not done."""
    return Decision(Verdict.IN_PROGRESS, retry_after_s=_NOT_YET_S)
