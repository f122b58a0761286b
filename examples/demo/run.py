"""Run: the same flights, deliveries and kills for two consumers, and the comparison with the truth. Each has a Lane."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from examples.demo.broker import FlightBroker, request_of
from examples.demo.consumers import Job
from examples.demo.flights import read_flights
from examples.demo.report import Report, State, VariantReport
from examples.demo.schedule import Settings, delivery_order, kill_points
from examples.demo.stage.children import ChildEndedError, ChildProcess, last_words
from examples.demo.stage.databases import RunTable
from examples.demo.stage.leftovers import Silence
from examples.demo.stores import Stores
from examples.demo.truth import compare, flights_in
from idempotent.outcomes import Outcome

_FIRST_GUESS_S: Final = 0.01
_STALLED_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.05


class Lane:
    """Runs one consumer until its broker has nothing left.

    Args:
        kills: after how many deliveries, redeliveries not counted, it is killed; ascending.
        seed: decides how long after its last delivery each kill comes.

    Attributes:
        module: what its process runs.
        seconds: from the start to the last acknowledgement; 0 until then.
    """

    module = "examples.demo.child"

    def __init__(
        self, name: str, job: Job, broker: FlightBroker, kills: Sequence[int], *, seed: int, log: Path
    ) -> None:
        self.name: Final = name
        self.broker = broker
        self.crashes = 0
        self.seconds = 0.0
        self._job = job
        self._kills = list(kills)
        self._rng = random.Random(f"moments {seed}")
        self._log = log
        self._began = time.monotonic()
        self._child: ChildProcess | None = None
        self._starting = threading.Lock()
        self._serving_since = 0.0
        self._answered_before = 0
        self._killed = False

    def state(self) -> State:
        """How far it is."""
        broker = self.broker
        skipped = broker.outcomes[Outcome.DUPLICATE]
        return State(broker.expected, broker.delivered, skipped, self.crashes, self.seconds)

    @property
    def done(self) -> int:
        """How much it has done: a number that grows."""
        return self.broker.answered

    def start(self) -> None:
        """Start a consuming process."""
        self._killed, self._serving_since = False, 0.0
        with self._starting:
            self._child = ChildProcess(self.module, self._job, self._log, on_line=self._serve)

    def check(self) -> None:
        """Start the consumer again if it was killed; note the time if it has finished.

        Raises:
            ChildEndedError: it ended before its time.
        """
        code = None if self._child is None or self.seconds else self._child.poll()
        if code is None:
            return
        self.stop()
        if self._killed and code == -signal.SIGKILL:
            self.crashes += 1
            self._crashed()
            self.start()
        elif code or not self.broker.finished:
            raise ChildEndedError(
                f"the consumer {self.name} ended unexpectedly with code {code}: {self.last_words()}"
            )
        else:
            self.seconds = time.monotonic() - self._began

    def stop(self) -> None:
        """End the consuming process now."""
        if self._child is not None:
            self._child.kill()

    def last_words(self) -> str:
        """The end of what the consuming processes printed, as one line."""
        return last_words(self._log)

    def _crashed(self) -> None:
        self.broker.crash()

    def _serve(self, line: bytes) -> None:
        """Answer one request, and kill the consumer when it is time."""
        # Nothing from a consumer that is about to die is heard: a dead consumer's acknowledgements are lost.
        if self._killed:
            return
        with self._starting:  # the first request may come before `start` has returned
            child = self._child
        assert child is not None
        broker = self.broker
        if not self._serving_since:
            self._serving_since, self._answered_before = time.monotonic(), broker.answered
        answers, limit = request_of(line)
        broker.take(answers)
        parcels = broker.deliver(limit)
        child.tell([parcels, broker.finished])
        answered = broker.answered - self._answered_before
        if parcels and self._kill_is_due(answered):
            self._killed = True
            del self._kills[0]
            time.sleep(self._moment_s(answered))
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)

    def _kill_is_due(self, answered: int) -> bool:
        """Once its point is passed and this process has settled something: a death at birth shows nothing."""
        broker = self.broker
        return bool(self._kills) and broker.sent >= self._kills[0] and (answered > 0 or broker.nothing_new)

    def _moment_s(self, answered: int) -> float:
        """Time to the kill: it may meet the batch before its claim, half-way, or booked but not acknowledged."""
        served_s = time.monotonic() - self._serving_since
        batch_s = served_s / answered * self._job.batch_size if answered else _FIRST_GUESS_S
        return self._rng.uniform(0.0, 2.0) * batch_s


def run_lanes(lanes: Sequence[Lane], on_tick: Callable[[], object]) -> None:
    """Run consumers side by side until all have finished.

    Raises:
        ChildEndedError: one ended unexpectedly, or nothing was done for a minute.
    """
    silence = Silence()
    try:
        for lane in lanes:
            lane.start()
        while not all(lane.seconds for lane in lanes):
            on_tick()
            time.sleep(_LOOK_EVERY_S)
            for lane in lanes:
                lane.check()
            if silence.seconds(sum(lane.done for lane in lanes)) > _STALLED_S:
                words = [f"{lane.name}: {lane.last_words()}" for lane in lanes if not lane.seconds]
                raise ChildEndedError(f"nothing was acknowledged for {_STALLED_S:.0f} s. {'; '.join(words)}")
    finally:
        for lane in lanes:
            lane.stop()
    on_tick()


class Run:
    """One run of the demo."""

    def __init__(self, settings: Settings, stores: Stores, folder: Path) -> None:
        self.settings: Final = settings
        self.stores: Final = stores
        flights = list(read_flights(settings.flights))
        order = delivery_order(len(flights), duplicates=settings.duplicates, seed=settings.seed)
        kills = kill_points(len(order), kills=settings.kills, seed=settings.seed)

        def lane(name: str, checker_url: str | None, bookings: RunTable) -> Lane:
            job = Job(checker_url, bookings.url, bookings.table.name, settings.batch_size)
            broker = FlightBroker(flights, order, seed=settings.seed)
            log = folder / f"{name.replace(' ', '-')}.log"
            return Lane(name, job, broker, kills, seed=settings.seed, log=log)

        self.with_checker: Final = lane("with the checker", stores.keys.url, stores.with_checker)
        self.without_checker: Final = lane("without a checker", None, stores.without_checker)

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        """Both consumers."""
        return self.with_checker, self.without_checker

    def deliver(self, on_tick: Callable[[], object]) -> None:
        """Deliver everything to both consumers, side by side.

        Raises:
            ChildEndedError: a consumer ended unexpectedly, or acknowledged nothing for a minute.
        """
        run_lanes(self.lanes, on_tick)

    def compare(self) -> Report:
        """Read both tables, and the data set once more, and compare them row by row."""
        truth = list(read_flights(self.settings.flights))
        stores, ours, theirs = self.stores, self.with_checker, self.without_checker
        explained = None if stores.keys.is_transactional else ours.broker.in_hand_at_crash
        booked = compare(truth, flights_in(stores.with_checker), explained=explained)
        naive = compare(truth, flights_in(stores.without_checker))
        return Report(
            settings=self.settings,
            stores=stores,
            with_checker=VariantReport.of(ours.broker, ours.crashes, ours.seconds, booked),
            without_checker=VariantReport.of(theirs.broker, theirs.crashes, theirs.seconds, naive),
        )
