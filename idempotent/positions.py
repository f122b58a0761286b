"""Position: where a message stands in a partition that is read in order."""

from __future__ import annotations

from typing import NamedTuple


class Position(NamedTuple):
    """One message's place, as `Message.position` of adapters that read partitions in order.

    Attributes:
        topic_id: the topic's identity, which a topic of the same name made later does not have.
        partition: its number.
        offset: the message's own.
        expected: the offset after the message before it. Offsets have gaps, so it may be smaller than `offset`.
    """

    topic_id: str
    partition: int
    offset: int
    expected: int

    def __str__(self) -> str:
        return f"{self.topic_id}/{self.partition}/{self.offset}"
