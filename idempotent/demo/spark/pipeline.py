"""The pipeline that the demo shows: read -> dedup -> enrich -> staged Parquet -> published."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from idempotent.demo.spark.deliveries import SCHEMA
from idempotent.demo.spark.stores import COLUMNS, SparkStores
from idempotent.demo.spark.year import CARRIERS, LATE_MINUTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONSUMER: Final = "flights"
# A killed driver is started again at once, and no other run wants its keys.
LEASE_S: Final = 60.0
Report = Callable[[str], object]
"""Called with the name of each finished step."""


def run_month(spark: SparkSession, stores: SparkStores, folder: Path, date: str, report: Report) -> None:
    """One run, from begin to commit, or from where a killed driver left it."""
    from idempotent.adapters.spark import IdempotentRun

    with IdempotentRun.begin(stores.ledger, consumer=CONSUMER, run_id=date, lease_s=LEASE_S) as run:
        report("begun")
        if not run.is_committed:
            rows = spark.read.schema(SCHEMA).parquet(str(folder / "in" / date))
            new = run.dedup(rows, key="flight", order_by=["attempt", "message_id"])
            # A folder for each attempt: executors of a killed driver may still write to theirs.
            staging = Path(tempfile.mkdtemp(prefix=f"{date}-", dir=folder / "staging"))
            enrich(new).write.mode("overwrite").parquet(str(staging))  # makes all claims
            report("claimed")
            with run.publishing() as publication:
                report("prepared")
                target = folder / "out" / f"run_id={publication.run_id}"
                shutil.rmtree(target, ignore_errors=True)
                staging.rename(target)
                report("moved")
                stores.replace(publication.run_id, published_rows(target))
                report("booked")
                publication.output_ref = str(target)
    report("committed")


def enrich(new: DataFrame) -> DataFrame:
    """With the carrier's name, and how punctual the flight was."""
    from pyspark.sql import functions as F

    names = F.create_map(*(F.lit(word) for pair in CARRIERS.items() for word in pair))
    delay = F.col("arr_delay")
    punctuality = (
        F.when(delay.isNull(), "never arrived")
        .when(delay <= 0, "on time")
        .when(delay <= LATE_MINUTES, "late")
        .otherwise("very late")
    )
    return new.withColumns(
        {"carrier_name": names[F.split_part("flight", F.lit("/"), F.lit(2))], "punctuality": punctuality}
    ).select(*COLUMNS)


def published_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of the Parquet files under a folder."""
    from pyarrow import parquet

    return [
        row
        for file in sorted(folder.rglob("*.parquet"))
        for row in parquet.ParquetFile(file).read(columns=list(COLUMNS)).to_pylist()
    ]
