"""Batches: how many messages a relay reads of each bucket, and which of them it publishes together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from idempotent.outbox.store import Waiting

# The most bytes of bodies and headers that are read together, as far as earlier messages tell.
_BYTES: Final = 16_000_000
_FIRST: Final = 64
_GROWTH: Final = 4
# At least so many messages of each bucket are read, so that one that begins to fill is noticed.
_LEAST: Final = 8


def waves(messages: Sequence[Waiting], most: int) -> list[list[Waiting]]:
    """The messages in batches that have at most one of each lane: a batch may stop midway."""
    found: list[list[Waiting]] = []
    after: dict[bytes, int] = {}
    for message in messages:
        number = after.get(message.lane, 0)
        while number < len(found) and len(found[number]) >= most:
            number += 1
        if number == len(found):
            found.append([])
        found[number].append(message)
        after[message.lane] = number + 1
    return found


class Window:
    """Divides a batch among buckets: those that had messages at the last read get equal parts of it.

    Args:
        batch_size: the most messages of a batch, about.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._most = min(batch_size, _FIRST)
        self._busy: set[int] = set()

    def limits(self, buckets: Collection[int]) -> dict[int, int]:
        """How many messages to read of each bucket."""
        busy = self._busy.intersection(buckets)
        least = min(_LEAST, self._most)
        part = max(self._most // max(len(busy) or len(buckets), 1), least)
        if self._most < len(buckets):  # large messages: a few buckets at a time
            chosen = sorted(busy)[: self._most] or sorted(buckets)
            return dict.fromkeys(chosen, 1)
        return {bucket: part if bucket in busy or not busy else least for bucket in sorted(buckets)}

    def note(self, messages: Sequence[Waiting]) -> None:
        """Note what was read."""
        self._busy = {message.bucket for message in messages}
        if messages:
            size = sum(len(each.body or b"") + len(each.headers or b"") for each in messages) / len(messages)
            room = int(_BYTES / max(size, 1.0))
            self._most = max(min(self._most * _GROWTH, self._batch_size, room), 1)
