"""Faults: what a MemoryBroker does wrong on request, the same in every run with the same seed."""

from __future__ import annotations

import hashlib

from idempotent.errors import ConfigurationError


class Faults:
    """Decides by the seed and by a message's number, not by timing. `MemoryBroker` explains the arguments.

    A broker without faults computes no chances: they would take most of its time.

    Raises:
        ConfigurationError: a rate or number is out of its range.
    """

    def __init__(
        self, seed: int, *, duplicate_rate: float, reorder_window: int, redeliver_rate: float
    ) -> None:
        if not 0 <= duplicate_rate <= 1:
            raise ConfigurationError(f"duplicate_rate must be from 0 to 1, not {duplicate_rate}")
        if not 0 <= redeliver_rate < 1:
            raise ConfigurationError(f"redeliver_rate must be from 0 to below 1, not {redeliver_rate}")
        if reorder_window < 0:
            raise ConfigurationError(f"reorder_window must not be negative, not {reorder_window}")
        self._seed = seed
        self._duplicate_rate = duplicate_rate
        self._reorder_window = reorder_window
        self._redeliver_rate = redeliver_rate

    def duplicates(self, number: int) -> bool:
        """Whether this message arrives twice."""
        return bool(self._duplicate_rate) and self._chance(number, "duplicate") < self._duplicate_rate

    def order(self, number: int) -> float:
        """The place of this message in its queue."""
        if not self._reorder_window:
            return number
        return number + self._chance(number, "order") * self._reorder_window

    def loses_ack(self, number: int, returns: int) -> bool:
        """Whether the acknowledgement gets lost after the message was returned `returns` times."""
        return bool(self._redeliver_rate) and self._chance(number, f"ack-{returns}") < self._redeliver_rate

    def _chance(self, number: int, what: str) -> float:
        """A number from 0 to below 1 that depends only on the seed and the arguments."""
        digest = hashlib.blake2b(f"{self._seed}:{number}:{what}".encode(), digest_size=6).digest()
        return int.from_bytes(digest, "big") / 2**48
