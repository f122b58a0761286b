"""Job: the first line that a consuming process reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GROUP: Final = "torture"


@dataclass(frozen=True, slots=True)
class Job:
    """One consuming process.

    Attributes:
        process: its name: the consumer's number, and how often that was started.
        broker_url: the adapter's URL.
        checker_url: the checker's URL.
        name: the run's, in tables and keys.
        subject: the queue or topic.
        journal: path of the file for its `Journal`.
        lease_s: seconds a claim of a leased checker lasts.
        concurrency: handlers at once.
        batch_size: messages processed together.
        shift_s: how wrong its clock is, in seconds.
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
