"""Job: what a consuming process is told at its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GROUP: Final = "torture"


@dataclass(frozen=True, slots=True)
class Job:
    """One consuming process.

    Attributes:
        process: its name: which consumer, and how often that was started.
        broker_url: where its messages come from.
        checker_url: its checker's.
        name: of the run, in tables and keys.
        subject: the queue or topic.
        journal: the file that it writes down in what it does.
        lease_s: of a leased checker.
        concurrency: handlers at once.
        batch_size: messages together.
        shift_s: by how much its clock is wrong, in seconds.
        in_order: whether the order of a partition is to be kept.
    """

    process: str
    broker_url: str
    checker_url: str
    name: str
    subject: str
    journal: str
    lease_s: float
    concurrency: int
    batch_size: int
    shift_s: float = 0.0
    in_order: bool = False
