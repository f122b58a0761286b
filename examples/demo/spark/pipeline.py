"""The pipeline that the demo shows: read -> dedup -> enrich -> staged Parquet -> published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from examples.demo.flights import read_carriers
from examples.demo.spark.deliveries import LATE_MINUTES, SCHEMA
from examples.demo.spark.stores import COLUMNS, SparkStores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONSUMER: Final = "flights"
Report = Callable[[list[str]], object]
"""Called with the date and the name of each finished step."""


def run_month(spark: SparkSession, stores: SparkStores, folder: Path, date: str, report: Report) -> None:
    """One run, from begin to commit, or from where a killed driver left it."""
    from idempotent.adapters.spark import IdempotentRun

    # The driver before is dead: the demo has killed it, and waited for its end.
    with IdempotentRun.begin(stores.ledger, consumer=CONSUMER, run_id=date, takeover=True) as run:
        report([date, "begun"])
        if not run.is_committed:
            rows = spark.read.schema(SCHEMA).parquet(str(folder / "in" / date))
            new = run.dedup(rows, key="flight", order_by=["attempt", "message_id"])
            run.stage(enrich(new), str(folder / "staging"))  # makes all claims
            report([date, "claimed"])
            with run.publishing() as publication:
                report([date, "prepared"])
                target = folder / "out" / f"run_id={publication.run_id}"
                publication.copy_to(str(target))
                report([date, "copied"])
                stores.insert(publication.run_id, published_rows(target))
                report([date, "booked"])
                publication.output_ref = str(target)
    report([date, "committed"])


def enrich(new: DataFrame) -> DataFrame:
    """With the carrier's name, and how punctual the flight was."""
    from pyspark.sql import functions as F

    names = F.create_map(*(F.lit(word) for pair in read_carriers().items() for word in pair))
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
        if not file.name.startswith("_")  # a copy that a killed driver did not finish
        for row in parquet.ParquetFile(file).read(columns=list(COLUMNS)).to_pylist()
    ]
