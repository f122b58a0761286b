"""What was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Layout(StrEnum):
    """How the keys lie in the store."""

    BY_HASH = "hash as primary key"
    """The library's own table: `key_hash BINARY(20) PRIMARY KEY`."""
    BY_ID = "id, UNIQUE(hash)"
    """The same columns behind an AUTO_INCREMENT or IDENTITY number."""
    STRINGS = "strings"
    """Redis."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Times of one kind of call.

    Attributes:
        calls: how many.
        p50_us: median, in microseconds.
        p99_us: 99th percentile.
    """

    calls: int
    p50_us: float
    p99_us: float

    @classmethod
    def of(cls, times_s: Sequence[float]) -> Latency:
        """Of times in seconds."""
        ordered = sorted(times_s)
        p50, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)]
        return cls(len(ordered), round(p50 * 1e6, 1), round(p99 * 1e6, 1))


@dataclass(frozen=True, slots=True)
class Point:
    """Claim and completion of fresh keys beside so many stored ones.

    Attributes:
        store: which.
        layout: of its keys.
        memory: what it may keep in memory: "128M", or less than the table has.
        stored: keys, before the first claim.
        batch: keys a claim.
        rate: keys claimed and completed in a second, by one thread.
        latency: of a claim and its completion together.
        bytes_per_key: of the store, indexes included.
    """

    store: str
    layout: Layout
    memory: str
    stored: int
    batch: int
    rate: float
    latency: Latency
    bytes_per_key: float


@dataclass(frozen=True, slots=True)
class Collection:
    """Garbage collection beside a consumer of single messages.

    Attributes:
        store: which.
        stored: keys, the expired ones included.
        deleted: expired keys.
        rate: keys deleted in a second, in a process of its own.
        without: what a claim and its completion take before.
        during: the same meanwhile.
    """

    store: str
    stored: int
    deleted: int
    rate: float
    without: Latency
    during: Latency


@dataclass(frozen=True, slots=True)
class Restart:
    """A worker that was killed, and the next one.

    Attributes:
        broker: which.
        store: which.
        backlog: messages that waited.
        first_s: seconds from the start of the process to the first settled message.
    """

    broker: str
    store: str
    backlog: int
    first_s: float


@dataclass(slots=True)
class Growth:
    """All of one run."""

    machine: str
    points: list[Point] = field(default_factory=list)
    collections: list[Collection] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
