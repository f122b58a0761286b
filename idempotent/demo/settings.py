"""The settings of one run of the demo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from idempotent.demo.flights import FLIGHTS

_BATCH: Final = 500


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of the command line.

    Attributes:
        flights: how many of the data set's flights.
        kills: how often each consumer is killed.
        duplicates: the share of messages that the producer sends twice, 0 to 1.
        seed: decides order, copies, kills and lost acknowledgements.
    """

    flights: int = FLIGHTS
    kills: int = 5
    duplicates: float = 0.05
    seed: int = 2013

    @property
    def batch_size(self) -> int:
        """Small enough that a small run has many batches for its kills to meet."""
        return max(1, min(_BATCH, self.flights // 20))
