"""Course: one consumption, from the first message to the last word to the broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

G = TypeVar("G")
T = TypeVar("T")


@dataclass(slots=True)
class Course:
    """What one consumer did.

    The clock starts with the first message and not with the connection: to join a Kafka group takes seconds, with
    and without a checker.

    Attributes:
        wall_s: seconds from the first message to the last acknowledgement.
        cpu_s: of them, processor time of this process.
        calls_us: of each call of the checker's consumer; none of a bare client.
        ends: when each of these calls ended, and how many messages had been given to calls by then.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    calls_us: list[float] = field(default_factory=list)
    ends: list[tuple[float, int]] = field(default_factory=list)
    _began: tuple[float, float] | None = None

    def begin(self) -> None:
        """The first message is there."""
        if self._began is None:
            self._began = time.perf_counter(), time.process_time()

    def end(self) -> None:
        """The last one is acknowledged."""
        assert self._began is not None, "nothing was received"
        wall, cpu = self._began
        self.wall_s, self.cpu_s = time.perf_counter() - wall, time.process_time() - cpu

    @property
    def second_half_us(self) -> float:
        """Microseconds a message from the call that ended after half of the messages to the last one."""
        given = self.ends[-1][1]
        half_at, before = next(end for end in self.ends if end[1] * 2 >= given)
        return (self.ends[-1][0] - half_at) * 1e6 / (given - before)

    def timed(self, call: Callable[[G], T]) -> Callable[[G], T]:
        """The same call on a message or on several, with its time among `calls_us`."""

        def timed(given: G) -> T:
            began = time.perf_counter()
            try:
                return call(given)
            finally:
                ended = time.perf_counter()
                self.calls_us.append((ended - began) * 1e6)
                before = self.ends[-1][1] if self.ends else 0
                self.ends.append((ended, before + (len(given) if isinstance(given, Sequence) else 1)))

        return timed
