"""Health: what a worker or a relay says of itself. InHand: what the handlers of a worker have in hand."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from idempotent.consumer import AnyConsumer
from idempotent.observe.running import Load, workers
from idempotent.worker.handlers import HandlerPool
from idempotent.worker.health_file import READY, HealthFile, content
from idempotent.worker.holds import Holds, InFlightDelivery
from idempotent.worker.pause_watch import PauseWatch

# As the file: who has not beaten for so long is stuck.
_STUCK_S: Final = 60.0
_MOST_NAMED: Final = 100
_STARTING: Final = "starting"
_STOPPED: Final = "stopped"
_STUCK: Final = "stuck"
_HANGS: Final = "hangs"


class InHand:
    """What the handlers of a worker have in hand. From any thread.

    Args:
        pool: runs the handlers.
        holds: the deliveries that wait for a check.
        routes: its consumers by subject.
        pauses: knows which of them are paused.

    Attributes:
        backlog: messages that wait in the broker, by consumer and partition, as the worker has last asked; set by the
            worker.
    """

    def __init__(
        self,
        pool: HandlerPool,
        holds: Holds,
        routes: Mapping[str, AnyConsumer],
        pauses: PauseWatch,
    ) -> None:
        self._pool = pool
        self._holds = holds
        self._names = [consumer.name for consumer in routes.values()]
        self._pauses = pauses
        self.backlog: Mapping[tuple[str, str], int] = {}

    def load(self, *, ready: bool) -> Load:
        """How many handlers run, how many deliveries are held, and so on."""
        zeros = dict.fromkeys(self._names, 0)
        running: Counter[str] = Counter()
        longest_s = dict.fromkeys(self._names, 0.0)
        for running_s, work in self._begun():
            name = work.consumer.name
            running[name] += 1
            longest_s[name] = max(longest_s[name], running_s)
        paused = zeros | dict.fromkeys(self.paused, 1)
        return Load(ready, zeros | running, zeros | self.held, longest_s, self.backlog, paused)

    @property
    def paused(self) -> list[str]:
        """The names of consumers that are paused."""
        return sorted(self._pauses.paused)

    @property
    def held(self) -> dict[str, int]:
        """Held deliveries by consumer."""
        return {consumer.name: count for consumer, count in dict(self._holds.of).items() if count}

    @property
    def longest_s(self) -> float:
        """For how long the handler has run that has run for longest; 0: none runs."""
        return max((running_s for running_s, _ in self._begun()), default=0.0)

    def running(self) -> list[dict[str, Any]]:
        """The messages whose handlers have run for longest, a hundred at most."""
        longest = sorted(self._begun(), key=lambda run: -run[0])[:_MOST_NAMED]
        return [
            {"consumer": work.consumer.name, "key": work.key, "running_s": round(running_s, 3)}
            for running_s, work in longest
        ]

    def _begun(self) -> Iterator[tuple[float, InFlightDelivery]]:
        now = time.monotonic()
        for work in self._pool.running:
            running_s = work.running_s(now)
            if running_s is not None:
                yield running_s, work


class Health:
    """Whether a worker or a relay has started, lives and is ready. `HealthServer` shows it over HTTP.

    It is live while its loop runs: it has beaten in the last minute. It is ready while its broker is connected and its
    stores can be used. Before its start and after its end it is live, and not ready.

    Args:
        file: shows the same; None: no file does.
    """

    def __init__(self, file: HealthFile | None = None) -> None:
        """Not started yet."""
        self._file = file
        self._beaten_at: float | None = None
        self._state = _STARTING
        self._long = 0
        self._waits_for: str | None = None
        self._in_hand: InHand | None = None

    def begin(self, in_hand: InHand | None = None) -> None:
        """Show from now on, in the metrics of the process too, how it is.

        Args:
            in_hand: what handlers have in hand; None: a relay has none.
        """
        self._in_hand = in_hand
        workers.add(self.load)

    def load(self) -> Load:
        """What metrics show."""
        in_hand = self._in_hand
        return Load(self._is_ready) if in_hand is None else in_hand.load(ready=self._is_ready)

    def beat(
        self, word: str, *, long: int = 0, waits_for: str | None = None, paused: Collection[str] = ()
    ) -> None:
        """Note that the loop has run once more.

        Args:
            word: one of those of `health_file`.
            long: how many messages take very long.
            waits_for: what the adapter waits for.
            paused: the names of consumers that are paused.
        """
        self._state, self._long, self._waits_for = word, long, waits_for
        self._beaten_at = time.monotonic()
        if self._file is not None:
            self._file.beat(content(word, long, waits_for, paused))

    def end(self) -> None:
        """Note that the worker has ended."""
        workers.remove(self.load)
        self._state, self._beaten_at, self._in_hand = _STOPPED, None, None
        if self._file is not None:
            self._file.remove()

    def report(self, hang_after_s: float | None = None) -> dict[str, Any]:
        """What is shown, as JSON.

        Args:
            hang_after_s: a handler that has run for so long hangs, and what runs it lives no more; None: never.
        """
        state, in_hand = self._state, self._in_hand
        if self._is_stuck:
            state = _STUCK
        elif hang_after_s is not None and in_hand is not None and in_hand.longest_s >= hang_after_s:
            state = _HANGS
        shown: dict[str, Any] = {
            "state": state,
            "started": state != _STARTING,
            "live": state not in (_STUCK, _HANGS),
            "ready": self._is_ready,
        }
        if self._waits_for is not None:
            shown["waits_for"] = self._waits_for
        if in_hand is not None:
            shown["long_messages"] = self._long
            shown["in_progress"] = in_hand.load(ready=self._is_ready).in_progress
            shown["held"] = in_hand.held
            shown["running"] = in_hand.running()
            shown["paused"] = in_hand.paused
        return shown

    @property
    def _is_ready(self) -> bool:
        return self._state == READY and not self._is_stuck

    @property
    def _is_stuck(self) -> bool:
        beaten_at = self._beaten_at
        return beaten_at is not None and time.monotonic() - beaten_at > _STUCK_S
