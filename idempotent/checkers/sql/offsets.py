"""OffsetChecker: no keys at all, only how far each partition has come, in the transaction of the effects."""

from __future__ import annotations

from collections.abc import Mapping

from idempotent.checkers.sql.in_transactions import InTransactions
from idempotent.checkers.sql.offset_ledger import OffsetLedger
from idempotent.keys import Key
from idempotent.message import Position


class OffsetChecker(InTransactions):
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

    ledger_type = OffsetLedger
    _ledger: OffsetLedger

    def begin(self, starts: Mapping[Key, int]) -> dict[Key, int]:
        """Where to read on in each partition. One that is new to the store begins where `starts` says.

        Raises:
            StoreError: the database did not answer.
        """
        return self.store.connections.run_atomically(self._ledger.offsets.begin, starts)

    def skip(self, partition: Key, position: Position) -> bool:
        """Move on past a message that will not be processed, such as a dead letter whose copy is confirmed.

        Returns whether its turn had come.

        Raises:
            StoreError: the database did not answer.
        """
        to, between = position.offset + 1, (position.expected, position.offset)
        return self.store.connections.run_atomically(
            lambda driver: self._ledger.offsets.advance(
                driver, partition, between, to, bytes(16), self.lock_timeout_s
            )
        )
