"""LiveRun: two consuming processes over a real broker, what happens to them, and what they booked."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from examples.demo.consumers import GROUP, Job
from examples.demo.flights import Flight, read_flights
from examples.demo.report import Counts, LiveReport, State
from examples.demo.schedule import Settings, delivery_order, kill_points
from examples.demo.stage.children import ChildEndedError, ChildProcess, last_words
from examples.demo.stage.leftovers import LOOKS, FindLeft, Silence, left_over
from examples.demo.stage.places import Place
from examples.demo.stage.producer import Producer
from examples.demo.stores import LEASE_S, Stores
from examples.demo.truth import compare, flights_in
from idempotent.message import Message
from idempotent.outcomes import Outcome

_STOP_S: Final = 60.0
_PROCESSES: Final = 2
_LOOK_EVERY_S: Final = 0.05
_STALLED_S: Final = 120.0
_LONGEST_MOMENT_S: Final = 0.2
_RESTART_AT: Final = 0.5
_REWIND_AT: Final = 0.75
_TOGETHER: Final = 500


class ConsumerProcess:
    """One of the consumers, killed and started again.

    Attributes:
        module: what its process runs.
    """

    module = "examples.demo.child"

    def __init__(self, job: Any, log: Path) -> None:
        self._job = job
        self._log = log
        self._child: ChildProcess | None = None
        self._before: Counter[Outcome] = Counter()
        self._now: Counter[Outcome] = Counter()
        self.is_up = False
        """The current process has reported something."""

    @property
    def outcomes(self) -> Counter[Outcome]:
        """What its processes reported so far; the last outcomes of a killed one are missing."""
        return self._before + self._now

    @property
    def at_work(self) -> bool:
        """Whether the current process has settled anything."""
        return self._now.total() > 0

    def start(self) -> None:
        """Start a process."""
        self._before, self._now = self.outcomes, Counter()
        self.is_up = False
        self._child = ChildProcess(self.module, self._job, self._log, on_line=self._listen)

    def kill(self) -> None:
        """SIGKILL."""
        if self._child is not None:
            self._child.kill()

    def stop(self) -> None:
        """SIGTERM: it finishes and settles what it has. Raises ChildEndedError: not in time, or it failed."""
        if self._child is not None:
            code = self._child.stop(_STOP_S)
            # A process that has just started does not handle the signal yet.
            if code and (code != -signal.SIGTERM or self.at_work):
                raise self._ended(code)
            self._child = None

    def check(self) -> None:
        """Raise ChildEndedError if it ended without a kill or a signal."""
        code = None if self._child is None else self._child.poll()
        if code is not None:
            raise self._ended(code)

    def last_words(self) -> str:
        """The end of what it printed, as one line."""
        return last_words(self._log)

    def _ended(self, code: int) -> ChildEndedError:
        return ChildEndedError(f"a consumer ended unexpectedly with code {code}: {self.last_words()}")

    def _listen(self, line: bytes) -> None:
        self.is_up = True
        self._now = Counter({Outcome(name): count for name, count in json.loads(line).items()})


@dataclass(slots=True)
class _Event:
    """Something that happens once `at` deliveries are settled; `act` returns whether it was possible."""

    at: int
    act: Callable[[], bool]


class LiveRun:
    """One run.

    Args:
        restart: kills the broker and starts it again, once in the middle; None: the broker is not restarted.
        find_left: returns the messages that the broker still holds for the consumers.
    """

    def __init__(
        self,
        settings: Settings,
        stores: Stores,
        place: Place,
        folder: Path,
        restart: Callable[[], object] | None = None,
        *,
        find_left: FindLeft = left_over,
    ) -> None:
        self.seconds = 0.0
        self._settings = settings
        self._stores = stores
        self._place = place
        self._restart = restart
        self._find_left = find_left
        self._rng = random.Random(f"live {settings.seed}")
        flights = list(read_flights(settings.flights))
        self._order = delivery_order(
            len(flights),
            duplicates=0.0 if stores.keys.by_position else settings.duplicates,
            seed=settings.seed,
        )
        self._counts = Counts(sent=len(self._order))
        self._producer = Producer(place.adapter, batches(place.subject, flights, self._order))
        job = Job(
            stores.keys.url,
            stores.with_checker.url,
            stores.with_checker.table.name,
            settings.batch_size,
            place.subject,
            place.url,
        )
        self._consumers = [
            ConsumerProcess(job, folder / f"consumer-{number}.log") for number in range(_PROCESSES)
        ]
        self._events = self._plan()

    def state(self) -> State:
        """How far the consumers are, as far as they reported."""
        delivered = self._delivered
        expected = delivered if self.seconds else max(len(self._order), delivered + 1)
        return State(expected, delivered, self._outcomes[Outcome.DUPLICATE], self._counts.kills, self.seconds)

    def deliver(self, on_tick: Callable[[], object]) -> None:
        """Send, consume, kill, restart; until everything is booked and nothing is left on the broker.

        Raises:
            ChildEndedError: a consumer ended unexpectedly, or nothing was settled for two minutes.
            AdapterError: the broker does not take the messages.
        """
        began = time.monotonic()
        self._producer.start()
        try:
            if self._stores.keys.by_position:
                # A message that is sent again after an error is another message to an OffsetChecker.
                self._wait_for_producer(on_tick)
            for _ in range(LOOKS):
                for consumer in self._consumers:
                    consumer.start()
                self._consume(on_tick)
                for consumer in self._consumers:
                    consumer.stop()
                self.seconds = time.monotonic() - began
                on_tick()
                self._counts.left = self._count_left()
                if not self._counts.left:
                    return
        finally:
            for consumer in self._consumers:
                consumer.kill()
            self._producer.stop()

    def compare(self) -> LiveReport:
        """Compare the bookings with the data set, row by row."""
        truth = read_flights(self._settings.flights)
        counts, outcomes = self._counts, self._outcomes
        counts.sent_again, counts.delivered = self._producer.sent_again, outcomes.total()
        counts.processed, counts.duplicates = outcomes[Outcome.PROCESSED], outcomes[Outcome.DUPLICATE]
        booked = compare(truth, flights_in(self._stores.with_checker))
        return LiveReport(self._settings, self._stores, self._place, counts, self.seconds, booked)

    # Private

    @property
    def _outcomes(self) -> Counter[Outcome]:
        return sum((consumer.outcomes for consumer in self._consumers), Counter())

    @property
    def _delivered(self) -> int:
        return self._outcomes.total()

    def _plan(self) -> list[_Event]:
        total, settings = len(self._order), self._settings
        events = [
            _Event(at, self._kill_one) for at in kill_points(total, kills=settings.kills, seed=settings.seed)
        ]
        if self._restart is not None:
            events.append(_Event(int(total * _RESTART_AT), self._restart_broker))
        if self._stores.keys.by_position and self._place.has_offsets:
            events.append(_Event(int(total * _REWIND_AT), self._rewind_offsets))
        return sorted(events, key=lambda event: event.at)

    def _wait_for_producer(self, on_tick: Callable[[], object]) -> None:
        while not self._producer.finished:
            on_tick()
            time.sleep(_LOOK_EVERY_S)

    def _consume(self, on_tick: Callable[[], object]) -> None:
        silence = Silence()
        while True:
            on_tick()
            time.sleep(_LOOK_EVERY_S)
            for consumer in self._consumers:
                consumer.check()
            sent = self._producer.finished
            if not all(consumer.is_up for consumer in self._consumers):
                silence.restart()
            quiet_s = silence.seconds(self._delivered)
            if self._events and (
                self._delivered >= self._events[0].at or (sent and quiet_s > self._place.quiet_s)
            ):
                if self._events[0].act():
                    del self._events[0]
                    silence.restart()
            elif sent and quiet_s > self._place.quiet_s + LEASE_S and self._all_booked():
                # A copy of a booked message may still wait for the lease of a killed consumer.
                return
            elif quiet_s > _STALLED_S:
                words = "; ".join(consumer.last_words() for consumer in self._consumers)
                raise ChildEndedError(f"nothing was settled for {_STALLED_S:.0f} s. {words}")

    def _all_booked(self) -> bool:
        return self._stores.with_checker.count() >= self._settings.flights

    def _kill_one(self) -> bool:
        """Kill a consumer that has settled something: a death at birth shows nothing. Once all is booked, kill any."""
        at_work = [consumer for consumer in self._consumers if consumer.at_work]
        if not at_work and self._all_booked():
            at_work = self._consumers
        if not at_work:
            return False
        # It may meet a batch before its claim, half-way, or booked but not acknowledged.
        time.sleep(self._rng.uniform(0.0, _LONGEST_MOMENT_S))
        victim = self._rng.choice(at_work)
        victim.kill()
        self._counts.kills += 1
        victim.start()
        return True

    def _restart_broker(self) -> bool:
        assert self._restart is not None
        self._restart()
        self._counts.restarts += 1
        return True

    def _rewind_offsets(self) -> bool:
        for consumer in self._consumers:
            consumer.kill()
            self._counts.kills += 1
        self._place.rewind(GROUP)
        self._counts.rewinds += 1
        for consumer in self._consumers:
            consumer.start()
        return True

    def _count_left(self) -> int:
        # An OffsetChecker has offsets of its own, and the adapter reads from there.
        checker = self._stores.keys.checker()
        return len(self._find_left(self._place.adapter(), self._place.subject, GROUP, checker))


def batches(subject: str, flights: Sequence[Flight], order: Sequence[int]) -> Iterator[list[Message]]:
    """The messages of the flights, in the order of their numbers."""
    for start in range(0, len(order), _TOGETHER):
        chosen = (flights[number] for number in order[start : start + _TOGETHER])
        yield [Message(subject, json.dumps(flight._asdict()).encode(), id=flight.flight) for flight in chosen]
