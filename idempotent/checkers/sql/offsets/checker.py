"""OffsetChecker: stores no keys, only the next offset of each partition, in the transaction of the effects."""

from __future__ import annotations

from collections.abc import Mapping

from idempotent.admin import KeyAdmin
from idempotent.checkers.sql.offsets.recorder import OffsetRecorder
from idempotent.checkers.sql.transactional import InTransactions
from idempotent.claims import Remembers
from idempotent.errors import ConfigurationError
from idempotent.keys import Key
from idempotent.message import Position


class OffsetChecker(InTransactions):
    """Stores one row for each partition instead of each message, for adapters that read partitions in order (Kafka).

    The next offset advances in the transaction of the handler's writes, so a message that is read again is recognised
    by its offset. On assignment the adapter starts at the stored offset, whatever the broker has committed.

    A message that its producer sent twice has two offsets and runs twice; use `TransactionalSqlChecker` where producers
    resend. Messages of a partition take effect in order: one that fails delays those after it until it is processed
    or dead. Results are not stored.

    Args:
        engine_or_url: as for `TransactionalSqlChecker`; the database of the handlers' writes.
        table: name of the key table; offsets are in `<table>_offsets`. `idempotent.migrations.upgrade` makes both.
        retention_s: seconds the attempts of a failed message are remembered.
        lock_timeout_s: seconds a message waits for another transaction that advances its partition.
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
            "an OffsetChecker keeps the offsets of partitions, not keys; for the keys in the same tables "
            "leave offsets+ out of the URL"
        )

    def begin(self, starts: Mapping[Key, int]) -> dict[Key, int]:
        """The next offset to read in each partition. One that is not stored yet starts at its offset in `starts`.

        Raises:
            StoreError: the database did not answer.
        """
        return self.store.connections.run_atomically(self._recorder.offsets.begin, starts)

    def skip(self, partition: Key, position: Position) -> bool:
        """Advance past a message that will not be processed, such as a dead letter whose copy is confirmed.

        Returns whether it was the next message of its partition.

        Raises:
            StoreError: the database did not answer.
        """
        to, between = position.offset + 1, (position.expected, position.offset)
        return self.store.connections.run_atomically(
            lambda driver: self._recorder.offsets.advance(
                driver, partition, between, to, bytes(16), self.lock_timeout_s
            )
        )
