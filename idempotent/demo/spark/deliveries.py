"""The deliveries: files of rows, with every kind of duplicate, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from idempotent.demo.flights import Flight
from idempotent.demo.spark.settings import SparkSettings

_FILES: Final = 4
_LATE_WITHIN: Final = 2
SCHEMA: Final = "message_id string, attempt int, flight string, distance int, arr_delay int"


@dataclass(frozen=True, slots=True)
class Row:
    """A delivery: the flight in the producer's envelope.

    Attributes:
        message_id: the producer's, which changes when it sends again.
        attempt: of the producer, from 1.
        flight: the content.
    """

    message_id: str
    attempt: int
    flight: Flight


@dataclass(frozen=True, slots=True)
class Delivered:
    """The size of the deliveries.

    Attributes:
        rows: the number of rows in all files.
        files: the number of files.
        flights: the number of different flights.
        repeated_by_naive: the repeated flights that dropDuplicates in each run would have let through.
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
            table = pa.Table.from_pylist([_as_dict(row) for row in rows], schema)
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


def _as_dict(row: Row) -> dict[str, Any]:
    return {"message_id": row.message_id, "attempt": row.attempt, **row.flight._asdict()}
