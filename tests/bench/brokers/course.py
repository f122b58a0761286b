"""Course: one consumption, from the first message to the last word to the broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

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
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    calls_us: list[float] = field(default_factory=list)
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

    def timed(self, call: Callable[..., T]) -> Callable[..., T]:
        """The same call, with its time among `calls_us`."""

        def timed(*arguments: object) -> T:
            began = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                self.calls_us.append((time.perf_counter() - began) * 1e6)

        return timed
