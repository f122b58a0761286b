"""The driver process that the demo kills: `python -m examples.demo.spark.child`.

It reads its job from standard input, does all runs in order, and reports each finished step on standard output.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from examples.demo.spark.pipeline import run_month
from examples.demo.spark.stores import SparkStores
from examples.demo.stage.children import told_by_parent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    # A JVM that lives for seconds gains nothing from the second compiler.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def main() -> None:
    """Read the job, and do it."""
    (ledger_url, database_url, folder, dates), report = told_by_parent()
    stores = SparkStores(ledger_url, database_url)
    report(["", "starting"])
    spark = _start_session()
    report(["", "started"])
    for date in dates:
        run_month(spark, stores, Path(folder), date, report)
    spark.stop()


def _start_session() -> SparkSession:
    """A local session, quiet, and quick to start again."""
    from pyspark.sql import SparkSession

    # Spark starts the python3 of PATH otherwise.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,4]").appName("spark demo")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


if __name__ == "__main__":
    main()
