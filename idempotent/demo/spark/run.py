"""SparkRun: the deliveries, the driver and its kills, and the comparison with the truth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from idempotent.demo.flights import Flight
from idempotent.demo.spark.deliveries import files_of_runs, write_files
from idempotent.demo.spark.pipeline import published_rows
from idempotent.demo.spark.process import DriverProcess
from idempotent.demo.spark.report import SparkReport
from idempotent.demo.spark.schedule import STEPS, kills_of
from idempotent.demo.spark.settings import SparkSettings
from idempotent.demo.spark.stores import COLUMNS, SparkStores
from idempotent.demo.spark.year import as_text, enriched, flights_by_month
from idempotent.demo.truth import compare


class SparkRun:
    """One run of the demo.

    Args:
        settings: how much of everything.
        stores: prepared.
        folder: for files.
    """

    def __init__(self, settings: SparkSettings, stores: SparkStores, folder: Path) -> None:
        """Write the files of the deliveries."""
        self._settings = settings
        self._stores = stores
        self._out: Final = folder / "out"
        for name in ("out", "staging"):
            (folder / name).mkdir()
        months = flights_by_month(settings)
        self._truth = [flight for month in months for flight in month]
        dates = settings.logical_dates
        self.delivered: Final = write_files(files_of_runs(months, settings), folder / "in", dates)
        self._driver = DriverProcess(stores, folder, dates, kills_of(settings))

    # Progress

    @property
    def steps(self) -> int:
        """The number of steps of all runs."""
        return len(STEPS) * self._settings.months

    @property
    def done(self) -> int:
        """The number of steps that are done, as far as the driver has reported."""
        driver = self._driver
        done = len(STEPS) * len(driver.committed)
        if driver.date in driver.committed or driver.step not in STEPS:
            return done
        return done + STEPS.index(driver.step) + 1

    @property
    def at(self) -> str:
        """The driver's run and step, as text."""
        return f"{self._driver.date} {self._driver.step}"

    @property
    def committed(self) -> int:
        """The number of committed runs."""
        return len(self._driver.committed)

    @property
    def kills(self) -> int:
        """The number of kills so far."""
        return self._driver.killed_after.total()

    # The run

    def do(self, on_tick: Callable[[], object]) -> None:
        """Do all runs, through all kills. Raises ChildEndedError: the driver ended before they were committed."""
        self._driver.run(on_tick)

    def compare(self) -> SparkReport:
        """Compare every row of both outputs with the data set."""
        truth = [_as_flight(enriched(flight), flight) for flight in self._truth]
        in_files = ([row[name] for name in COLUMNS] for row in published_rows(self._out))
        return SparkReport(
            settings=self._settings,
            stores=self._stores,
            delivered=self.delivered,
            kills=self.kills,
            killed_after=dict(self._driver.killed_after),
            seconds=self._driver.seconds,
            files=compare(truth, map(_published, in_files)),
            table=compare(truth, map(_published, self._stores.rows())),
        )


def _published(row: Any) -> Flight:
    flight, distance, arr_delay, carrier, punctuality = row
    return _as_flight(as_text(flight, carrier, punctuality), Flight(flight, distance, arr_delay))


def _as_flight(text: str, flight: Flight) -> Flight:
    return flight._replace(flight=text)
