"""StoredOffsets: the offsets that OffsetCheckers keep, which win over those committed to the broker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from idempotent.adapters.kafka.options import keeps_offsets
from idempotent.consumer import AnyConsumer
from idempotent.errors import StoreError
from idempotent.logs import EventLog
from idempotent.message import Position

if TYPE_CHECKING:
    from idempotent.checkers.sql.offsets import OffsetChecker

log = EventLog(__name__)
_RETRY_S: Final = 1.0


class StoredOffsets:
    """The consumers whose checkers keep positions, by topic. Belongs to the adapter's thread."""

    def __init__(self, consumers: Sequence[AnyConsumer]) -> None:
        self._consumers = {consumer.subject: consumer for consumer in consumers if keeps_offsets(consumer)}
        self._retry_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._consumers)

    def of(self, subject: str) -> bool:
        """Whether the positions in this topic are stored."""
        return subject in self._consumers

    def begin(self, subject: str, topic_id: str, partition: int, first: int) -> int | None:
        """The offset to continue from; a partition that is new to the store begins at `first`.

        None: the store does not answer. It is asked at most once a second then.
        """
        if time.monotonic() < self._retry_at:
            return None
        consumer = self._consumers[subject]
        key = consumer.binding.requests.partition(topic_id, partition)
        try:
            return _checker(consumer).begin({key: first})[key]
        except StoreError as error:
            self._retry_at = time.monotonic() + _RETRY_S
            log.warning("stored_offset_unknown", extra={"topic": subject, "error": str(error)})
            return None

    def skip(self, subject: str, position: Position) -> bool:
        """Move past a message whose dead letter is confirmed. False: the store does not answer."""
        consumer = self._consumers.get(subject)
        if consumer is None:
            return True
        try:
            _checker(consumer).skip(
                consumer.binding.requests.partition(position.topic_id, position.partition), position
            )
        except StoreError as error:
            log.warning("dead_letter_not_skipped", extra={"topic": subject, "error": str(error)})
            return False
        return True


def _checker(consumer: AnyConsumer) -> OffsetChecker:
    return cast("OffsetChecker", consumer.checker)
