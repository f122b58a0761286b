"""Lanes: which message of a partition may be handed out next."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from idempotent.adapters.kafka.client import Raw


@dataclass(slots=True, eq=False)
class Record:
    """One message of a partition, until it is finished.

    Attributes:
        raw: as the client library gave it.
        offset: where it stands.
        lane: what it keeps order with.
        due: when it may be handed out, by the adapter's clock.
        turns: how often it was handed out.
        expected: the offset after the message before it.
        refusals: how often the broker did not take a copy of it.
    """

    raw: Raw
    offset: int
    lane: Hashable
    due: float = 0.0
    turns: int = 0
    expected: int = 0
    refusals: int = 0


@dataclass(slots=True, eq=False)
class _Lane:
    waiting: deque[Record] = field(default_factory=deque)
    out: int = 0
    offer: int = 0
    offered: float | None = None
    """When its last offer is due; None: it has made none that still counts."""


class Lanes:
    """The messages that wait, each in its lane, first come first served.

    The first of a lane holds back those behind it until it is due, so a message that failed loses its place to
    none. Not thread-safe.

    Args:
        width: how many messages of one lane may be out at once.
    """

    def __init__(self, width: int) -> None:
        """Empty."""
        self._width = width
        self._lanes: dict[Hashable, _Lane] = {}
        # (due, tie, lane, the lane's offer); an offer that is not the lane's last one no longer counts.
        self._offers: list[tuple[float, int, _Lane, int]] = []
        self._ties = itertools.count()

    def add(self, record: Record) -> None:
        """A new message, behind all of its lane."""
        lane = self._lanes.get(record.lane)
        if lane is None:
            lane = self._lanes[record.lane] = _Lane()
        lane.waiting.append(record)
        if len(lane.waiting) == 1:
            self._offer(lane)

    def take(self, now: float, limit: int) -> list[Record]:
        """The next ones that may be handed out, at most `limit`."""
        taken: list[Record] = []
        while len(taken) < limit and self.next_due() <= now:
            lane = heapq.heappop(self._offers)[2]
            lane.offered = None
            room = min(limit - len(taken), self._width - lane.out)
            while room and lane.waiting and lane.waiting[0].due <= now:
                record = lane.waiting.popleft()
                record.turns += 1
                lane.out += 1
                room -= 1
                taken.append(record)
            self._offer(lane)
        return taken

    def finish(self, record: Record) -> None:
        """One that was taken needs nothing any more."""
        lane = self._lanes[record.lane]
        lane.out -= 1
        if lane.waiting:
            self._offer(lane)
        elif not lane.out:
            del self._lanes[record.lane]

    def retry_at(self, record: Record, due: float) -> None:
        """One that was taken goes back to its place, to be taken again when it is `due`."""
        record.due = due
        lane = self._lanes[record.lane]
        lane.out -= 1
        place = sum(1 for _ in itertools.takewhile(lambda other: other.offset < record.offset, lane.waiting))
        lane.waiting.insert(place, record)
        self._offer(lane)

    def next_due(self) -> float:
        """When `take` will have one, if nothing else happens; infinity: never."""
        while self._offers:
            due, _, lane, offer = self._offers[0]
            if offer == lane.offer:
                return due
            heapq.heappop(self._offers)
        return float("inf")

    def _offer(self, lane: _Lane) -> None:
        due = lane.waiting[0].due if lane.waiting and lane.out < self._width else None
        if due == lane.offered:
            return
        lane.offer += 1
        lane.offered = due
        if due is not None:
            heapq.heappush(self._offers, (due, next(self._ties), lane, lane.offer))
