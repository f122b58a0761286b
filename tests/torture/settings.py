"""The settings of a run, and the job of one of its processes."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from idempotent.errors import ConfigurationError

GROUP: Final = "torture"
SLOW: Final = 1.3
"""How many leases a slow handler takes: without renewal the first one would end."""


class Role(StrEnum):
    """What a process does."""

    CONSUMES = "consumes"
    SENDS = "sends"
    """It consumes, its handlers send through an outbox, and its worker has a relay."""
    RELAYS = "relays"
    """It does nothing else."""
    RECEIVES = "receives"
    """It consumes what the handlers of others sent, behind an inbox."""


class Shape(NamedTuple):
    """How one consumer works."""

    concurrency: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class Settings:
    """One run.

    Attributes:
        seed: decides faults, duplicates, and what the messages make their handlers do.
        seconds: how long faults happen. Starting, and processing the rest, take additional time.
        processes: number of consumers.
        lease_s: seconds a claim of a leased checker lasts.
        duplicates: the share of messages that the producer sends twice on purpose.
        rate_per_s: messages a second that the producer sends at most.
        backlog: the producer waits while this many messages are sent and not processed.
        outbox: handlers also send to a second service, through an outbox.

    Raises:
        ConfigurationError: a number is out of its range.
    """

    seed: int
    seconds: float = 60.0
    processes: int = 3
    lease_s: float = 4.0
    duplicates: float = 0.1
    rate_per_s: float = 200.0
    backlog: int = 600
    outbox: bool = False

    def __post_init__(self) -> None:
        """Check the numbers."""
        if min(self.seconds, self.lease_s, self.rate_per_s) <= 0 or self.processes < 1 or self.backlog < 1:
            raise ConfigurationError("seconds, lease, rate, processes and backlog must be positive")
        if not 0 <= self.duplicates < 1:
            raise ConfigurationError(f"duplicates must be from 0 to below 1, not {self.duplicates}")

    @property
    def roles(self) -> tuple[Role, ...]:
        """What each process does."""
        if not self.outbox:
            return (Role.CONSUMES,) * self.processes
        return (*(Role.SENDS,) * self.processes, Role.RELAYS, *(Role.RECEIVES,) * 2)

    def shape(self, slot: int, *, in_order: bool) -> Shape:
        """How a consumer works: one message at a time, in threads, or in groups; `in_order` keeps the order."""
        chance = random.Random(f"shape {self.seed} {slot}")
        if slot % 3 == 0 or (in_order and slot % 3 == 1):
            return Shape(chance.choice((1, 3, 20)), 1)
        return Shape(1 if in_order else chance.choice((1, 2)), chance.choice((5, 20, 200)))


@dataclass(frozen=True, slots=True)
class Job:
    """One consuming process: its name, what it connects to, and how it works.

    With `results` it stores results. Its clock is `shift_s` seconds wrong. With `is_async` its handlers are
    `async def`.
    """

    broker_url: str
    checker_url: str
    name: str
    lease_s: float
    concurrency: int
    batch_size: int
    results: bool = False
    process: str = ""
    journal: str = ""
    shift_s: float = 0.0
    is_async: bool = False
    role: str = Role.CONSUMES
