"""Run: the same flights, deliveries and kills for two consumers, and the comparison with the truth."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from idempotent.demo.bookings import WITH_CHECKER, WITHOUT_CHECKER, read_bookings
from idempotent.demo.broker import FlightBroker
from idempotent.demo.consumers import Job
from idempotent.demo.flights import read_flights
from idempotent.demo.lane import Lane
from idempotent.demo.report import Report, VariantReport
from idempotent.demo.schedule import delivery_order, kill_points
from idempotent.demo.settings import Settings
from idempotent.demo.stores import Stores
from idempotent.demo.truth import compare
from idempotent.testing.children import ChildEndedError
from idempotent.testing.stage.silence import Silence

_STALLED_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.05


class Run:
    """One run of the demo.

    Args:
        settings: the options.
        stores: prepared.
        folder: for the consumers' logs.
    """

    def __init__(self, settings: Settings, stores: Stores, folder: Path) -> None:
        self.settings: Final = settings
        self.stores: Final = stores
        flights = list(read_flights(settings.flights))
        order = delivery_order(len(flights), duplicates=settings.duplicates, seed=settings.seed)
        kills = kill_points(len(order), kills=settings.kills, seed=settings.seed)

        def lane(name: str, job: Job) -> Lane:
            broker = FlightBroker(flights, order, seed=settings.seed)
            log = folder / f"{name.replace(' ', '-')}.log"
            return Lane(name, job, broker, kills, seed=settings.seed, log=log)

        batch = settings.batch_size
        self.with_checker: Final = lane(
            "with the checker", Job(stores.keys.url, stores.with_checker, WITH_CHECKER, batch)
        )
        self.without_checker: Final = lane(
            "without a checker", Job(None, stores.without_checker, WITHOUT_CHECKER, batch)
        )

    @property
    def lanes(self) -> tuple[Lane, Lane]:
        """Both consumers."""
        return self.with_checker, self.without_checker

    def deliver(self, on_tick: Callable[[], object]) -> None:
        """Deliver everything to both consumers, side by side.

        Args:
            on_tick: called often meanwhile.

        Raises:
            ChildEndedError: a consumer ended unexpectedly, or acknowledged nothing for a minute.
        """
        silence = Silence()
        try:
            for lane in self.lanes:
                lane.start()
            while not all(lane.seconds for lane in self.lanes):
                on_tick()
                time.sleep(_LOOK_EVERY_S)
                for lane in self.lanes:
                    lane.check()
                if silence.seconds(sum(lane.broker.answered for lane in self.lanes)) > _STALLED_S:
                    raise ChildEndedError(self._why_stalled())
        finally:
            for lane in self.lanes:
                lane.stop()
        on_tick()

    def compare(self) -> Report:
        """Read both tables, and the data set once more, and compare them row by row."""
        truth = list(read_flights(self.settings.flights))
        stores, ours, theirs = self.stores, self.with_checker, self.without_checker
        explained = None if stores.keys.is_transactional else ours.broker.in_hand_at_crash
        booked = compare(truth, read_bookings(stores.with_checker, WITH_CHECKER), explained=explained)
        naive = compare(truth, read_bookings(stores.without_checker, WITHOUT_CHECKER))
        return Report(
            settings=self.settings,
            stores=stores,
            with_checker=VariantReport.of(ours.broker, ours.crashes, ours.seconds, booked),
            without_checker=VariantReport.of(theirs.broker, theirs.crashes, theirs.seconds, naive),
        )

    def _why_stalled(self) -> str:
        words = [f"{each.name}: {each.last_words()}" for each in self.lanes if not each.broker.finished]
        return f"nothing was acknowledged for {_STALLED_S:.0f} s. {'; '.join(words)}"
