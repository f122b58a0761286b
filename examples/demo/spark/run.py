"""SparkRun: the deliveries, the driver and its kills, and the comparison with the truth. SparkReport: its result."""

from __future__ import annotations

import json
import queue
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from examples.demo.flights import Flight
from examples.demo.spark.deliveries import (
    Delivered,
    as_text,
    enriched,
    files_of_runs,
    flights_by_month,
    write_files,
)
from examples.demo.spark.pipeline import published_rows
from examples.demo.spark.schedule import STEPS, SparkSettings, kills_of
from examples.demo.spark.stores import COLUMNS, SparkStores
from examples.demo.stage.children import ChildEndedError, ChildProcess
from examples.demo.truth import Comparison, Totals, compare

_TICK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class SparkReport:
    """The result of one run of the demo: how it went, and what its two outputs are against the truth."""

    settings: SparkSettings
    stores: SparkStores
    delivered: Delivered
    kills: int
    killed_after: Mapping[str, int]
    seconds: float
    files: Comparison
    table: Comparison

    @property
    def truth(self) -> Totals:
        """The sums over the data set."""
        return self.files.truth

    @property
    def kept_promise(self) -> bool:
        """Whether both outputs are equal to the truth."""
        return self.files.equal and self.table.equal

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        return {
            "ok": self.kept_promise,
            "url": self.stores.ledger.where,
            **asdict(self.settings),
            "kills": self.kills,
            "killed_after": dict(self.killed_after),
            "delivered": asdict(self.delivered),
            "seconds": round(self.seconds, 1),
            "truth": asdict(self.truth),
            "parquet": self.files.as_json(),
            "table": self.table.as_json(),
        }


class SparkRun:
    """One run of the demo.

    Attributes:
        date: the driver's run.
        step: the step that it reported last.
        committed: the dates of the committed runs.
        killed_after: the kills by the last step before them.
    """

    def __init__(self, settings: SparkSettings, stores: SparkStores, folder: Path) -> None:
        self._dates = settings.logical_dates
        self.date, self.step = self._dates[0], "starting"
        self.committed: Final[set[str]] = set()
        self.killed_after: Final[Counter[str]] = Counter()
        self._settings = settings
        self._stores = stores
        self._folder = folder
        self._seconds = 0.0
        for name in ("out", "staging"):
            (folder / name).mkdir()
        months = flights_by_month(settings)
        self._truth = [flight for month in months for flight in month]
        self._delivered = write_files(files_of_runs(months, settings), folder / "in", self._dates)
        self._kills = kills_of(settings)
        self._reports: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    @property
    def steps(self) -> int:
        """The number of steps of all runs."""
        return len(STEPS) * self._settings.months

    @property
    def done(self) -> int:
        """The number of steps that are done, as far as the driver has reported."""
        done = len(STEPS) * len(self.committed)
        if self.date in self.committed or self.step not in STEPS:
            return done
        return done + STEPS.index(self.step) + 1

    def do(self, on_tick: Callable[[], object]) -> None:
        """Do all runs, through all kills. Raises ChildEndedError: the driver ended before they were committed."""
        began = time.monotonic()
        driver = self._start()
        code = None
        try:
            while code is None or not self._reports.empty():
                on_tick()
                code = driver.poll()
                if code is not None:
                    driver.kill()  # reads the rest of its reports
                try:
                    date, step = json.loads(self._reports.get(timeout=_TICK_S))
                except queue.Empty:
                    continue
                self.date, self.step = date or self.date, step
                if step == "committed":
                    self.committed.add(date)
                if self._kills and (date, step) == self._kills[0][:2]:
                    time.sleep(self._kills.pop(0).delay_s)
                    driver.kill()
                    self.killed_after[step] += 1
                    driver, code = self._start(), None
        finally:
            driver.kill()
        if code or len(self.committed) < len(self._dates):
            raise ChildEndedError(
                f"the driver ended with code {code} before all runs were committed: {driver.last_words()}"
            )
        self._seconds = time.monotonic() - began
        on_tick()

    def compare(self) -> SparkReport:
        """Compare every row of both outputs with the data set."""
        truth = [_as_flight(enriched(flight), flight) for flight in self._truth]
        in_files = ([row[name] for name in COLUMNS] for row in published_rows(self._folder / "out"))
        return SparkReport(
            settings=self._settings,
            stores=self._stores,
            delivered=self._delivered,
            kills=self.killed_after.total(),
            killed_after=dict(self.killed_after),
            seconds=self._seconds,
            files=compare(truth, map(_published, in_files)),
            table=compare(truth, map(_published, self._stores.flights.rows(*COLUMNS))),
        )

    def _start(self) -> ChildProcess:
        self._reports = queue.SimpleQueue()  # a killed driver's last reports are not heard
        job = [self._stores.ledger_url, self._stores.database_url, str(self._folder), self._dates]
        log = self._folder / "driver.log"
        return ChildProcess("examples.demo.spark.child", job, log, on_line=self._reports.put)


def _published(row: Any) -> Flight:
    flight, distance, arr_delay, carrier, punctuality = row
    return _as_flight(as_text(flight, carrier, punctuality), Flight(flight, distance, arr_delay))


def _as_flight(text: str, flight: Flight) -> Flight:
    return flight._replace(flight=text)
