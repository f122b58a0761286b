"""StoredOffsets: the offsets that OffsetCheckers keep, which win over those committed to the broker."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, cast

from idempotent.adapters.kafka.options import keeps_offsets
from idempotent.adapters.kafka.partition import Partition
from idempotent.consumer import AnyConsumer
from idempotent.errors import StoreError
from idempotent.logs import EventLog
from idempotent.message import Position

if TYPE_CHECKING:
    from idempotent.checkers.sql.offsets import OffsetChecker

log = EventLog(__name__)
_RETRY_S: Final = 1.0
_LOOK_S: Final = 2.0


class StoredOffsets:
    """The consumers whose checkers keep positions, by topic. Belongs to the adapter's thread."""

    def __init__(self, consumers: Sequence[AnyConsumer]) -> None:
        self._consumers = {consumer.subject: consumer for consumer in consumers if keeps_offsets(consumer)}
        self._retry_at = 0.0
        self._look_at = 0.0

    def of(self, subject: str) -> bool:
        """Whether the positions in this topic are stored."""
        return subject in self._consumers

    def ask(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The stored offsets of partitions: before the first delivery, and of all again every few seconds.

        One that is new to the store begins where the client reads; it is left out while that is not known. None is
        there while the store does not answer.
        """
        now = time.monotonic()
        if not self._consumers or now < self._retry_at:
            return {}
        known = [each for each in partitions if each.is_stored and each.topic_id is not None]
        asked = [each for each in known if each.awaits_begin]
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            asked += [each for each in known if each.is_begun and self._may_look(each)]
        found: dict[Partition, int] = {}
        for subject in {each.subject for each in asked}:
            mine = [each for each in asked if each.subject == subject]
            try:
                found |= self._ask(subject, mine)
            except StoreError as error:
                self._retry_at = time.monotonic() + _RETRY_S
                if any(each.awaits_begin for each in mine):
                    log.warning("stored_offset_unknown", extra={"topic": subject, "error": str(error)})
        return found

    def _may_look(self, partition: Partition) -> bool:
        # With the kill switch on, messages are finished that the store does not have.
        return not self._consumers[partition.subject].binding.disabled

    def _ask(self, subject: str, asked: Sequence[Partition]) -> dict[Partition, int]:
        consumer = self._consumers[subject]
        keys = {each: consumer.binding.requests.partition(str(each.topic_id), each.number) for each in asked}
        found = _checker(consumer).begin(dict.fromkeys(keys.values()))
        new = {each: each.begins_at for each in asked if keys[each] not in found}
        found |= _checker(consumer).begin({keys[each]: start for each, start in new.items()}) if new else {}
        for each, start in new.items():
            each.awaits_record = start is None
            if start:
                about = {"topic": subject, "partition": each.number, "offset": start}
                log.warning("stored_offset_missing", extra=about)
        return {each: found[key] for each, key in keys.items() if key in found}

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
