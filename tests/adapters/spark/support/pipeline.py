"""A small pipeline: rows of a day -> dedup -> staged Parquet -> published to a folder and to a table."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from idempotent.adapters.spark import StoreConfig
from tests.adapters.spark.support.steps import Step, stepped

DAY = 200
AGAIN = 50
COPIES = 2


@dataclass(frozen=True)
class Place:
    """Where the rows go."""

    folder: Path

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def prepare(self) -> Place:
        self.out.mkdir(parents=True)
        with closing(sqlite3.connect(self.folder / "out.db")) as connection, connection:
            connection.execute("CREATE TABLE published (run_id TEXT, k TEXT)")
        return self

    def in_files(self) -> Counter[tuple[str, str]]:
        """(run_id, key) of every published row."""
        from pyarrow import dataset

        rows = dataset.dataset(self.out, format="parquet", partitioning="hive").to_table().to_pylist()
        return Counter((row["run_id"], row["k"]) for row in rows)

    def in_table(self) -> Counter[tuple[str, str]]:
        with closing(sqlite3.connect(self.folder / "out.db")) as connection:
            return Counter(connection.execute("SELECT run_id, k FROM published"))


def keys_of(day: int) -> range:
    """The last ones of the day before are delivered again."""
    return range(max(DAY * day - AGAIN, 0), DAY * (day + 1))


def frame_of(spark: Any, day: int) -> Any:
    """Every key twice, in different partitions."""
    from pyspark.sql import functions as F

    keys = keys_of(day)
    return spark.range(COPIES * len(keys), numPartitions=3).select(
        F.concat(F.lit("k"), (F.col("id") % len(keys) + keys.start).cast("string")).alias("k"),
        F.lit(day).alias("day"),
        F.col("id").alias("copy"),
    )


def do(
    spark: Any,
    store: StoreConfig,
    place: Place,
    *,
    day: int,
    consumer: str = "orders",
    step: Step = lambda function, _: function,
    through: Callable[[Any], Any] = lambda frame: frame,
    **options: Any,
) -> None:
    """One run, from begin to commit. `step` puts crash points around its steps."""
    run_id = f"{consumer}-{day}"
    begin = step(stepped(step).begin, "begin")
    with begin(store, consumer=consumer, run_id=run_id, fingerprint=b"%d" % day, chunk=50, **options) as run:
        if run.is_committed:
            return
        new = run.dedup(frame_of(spark, day), key="k", order_by=["copy"])
        step(run.stage, "claim")(through(new), str(place.folder / "staging"))
        with run.publishing() as publication:
            step(publication.copy_to, "publish")(str(place.out / f"run_id={run_id}"))
            step(book, "publish")(place, run_id, publication.files)


def book(place: Place, run_id: str, files: Sequence[str]) -> None:
    """Insert the staged rows, unless the run has some: one transaction, conditional on the run."""
    from pyarrow import parquet

    keys = [
        row["k"] for file in files for row in parquet.read_table(unquote(urlparse(file).path)).to_pylist()
    ]
    with closing(sqlite3.connect(place.folder / "out.db")) as connection:
        connection.execute("BEGIN IMMEDIATE")
        ((count,),) = connection.execute("SELECT COUNT(*) FROM published WHERE run_id = ?", (run_id,))
        if not count:
            connection.executemany("INSERT INTO published VALUES (?, ?)", [(run_id, key) for key in keys])
        connection.commit()


class KillsItsDriver:
    """For `mapInArrow`: lets the first batch of a partition through, and kills the driver at the second."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def __call__(self, batches: Any) -> Any:
        for number, batch in enumerate(batches):
            if number == 1:
                os.kill(self._pid, signal.SIGKILL)
            yield batch
