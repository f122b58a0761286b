"""Spark sessions for tests: quiet, small, and with the interpreter that runs the tests."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
# Executors start `python3` from PATH otherwise, and it must find this package and the tests.
ENVIRONMENT = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    # Several batches in each of the tests' partitions.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
}
# For a JVM that lives for minutes, and Python workers that are started for each task that fails.
QUICK = {
    "spark.python.daemon.module": "tests.adapters.spark.support.daemon",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}
# The second number: a task is tried so often. Plain local[2] never tries again.
MASTER = "local[2,4]"


def prepare_environment() -> None:
    os.environ.update(ENVIRONMENT)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        dict.fromkeys([str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    )


def classic(**settings):
    """A session in this process."""
    from pyspark.sql import SparkSession

    prepare_environment()
    builder = SparkSession.builder.master(settings.pop("master", MASTER)).appName("tests")
    for name, value in {**SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def connect(**settings):
    """A session of Spark Connect; its server is a JVM of this process."""
    from pyspark.sql import SparkSession

    prepare_environment()
    # A free port for the server, and not always the same.
    os.environ["SPARK_TESTING"] = "1"
    builder = SparkSession.builder.remote(MASTER).appName("tests")
    for name, value in {**SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
