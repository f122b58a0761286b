"""OrderedQueues: which message of a partition is delivered next."""

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
        raw: the client library's object.
        offset: in the partition.
        lane: the messages with the same lane keep their order.
        due: when it may be delivered, by the adapter's clock.
        expected: the offset after the previous message.
        epoch: the leader epoch in which it was written; -1 if unknown.
        size: in bytes.
        problem: why the client library cannot decode it; None if it can.
        turns: how often it was delivered.
        refusals: how often the broker refused a copy of it.
        failures: how often it failed in this process.
    """

    raw: Raw
    offset: int
    lane: Hashable
    due: float = 0.0
    expected: int = 0
    epoch: int = -1
    size: int = 0
    problem: str | None = None
    turns: int = 0
    refusals: int = 0
    failures: int = 0


@dataclass(slots=True, eq=False)
class _Lane:
    waiting: deque[Record] = field(default_factory=deque)
    out: int = 0
    offer: int = 0
    offered: float | None = None
    """When the current offer is due; None without one."""


class OrderedQueues:
    """The waiting messages, each in its lane, first in, first out.

    The first message of a lane blocks those behind it until it is due, so a failed message keeps its place. Not
    thread-safe.

    Args:
        width: how many messages of one lane may be delivered and unfinished at once.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._queues: dict[Hashable, _Lane] = {}
        # (due, tie, lane, number of the offer); an offer is outdated unless it is its lane's last one.
        self._offers: list[tuple[float, int, _Lane, int]] = []
        self._ties = itertools.count()

    def add(self, record: Record) -> None:
        """Add a new message at the end of its lane."""
        lane = self._queues.get(record.lane)
        if lane is None:
            lane = self._queues[record.lane] = _Lane()
        lane.waiting.append(record)
        if len(lane.waiting) == 1:
            self._offer(lane)

    def take(self, now: float, limit: int) -> list[Record]:
        """The next messages to deliver, at most `limit`."""
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
        """Remove a taken message."""
        lane = self._queues[record.lane]
        lane.out -= 1
        if lane.waiting:
            if lane.offered != lane.waiting[0].due:  # most lanes have their offer already
                self._offer(lane)
        elif not lane.out:
            del self._queues[record.lane]

    def retry_at(self, record: Record, due: float) -> None:
        """Return a taken message to its place; it may be taken again when it is `due`."""
        record.due = due
        lane = self._queues[record.lane]
        lane.out -= 1
        place = sum(1 for _ in itertools.takewhile(lambda other: other.offset < record.offset, lane.waiting))
        lane.waiting.insert(place, record)
        self._offer(lane)

    def next_due(self) -> float:
        """When `take` will return the next message; infinity if none waits."""
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
