"""The demo's Spark session: local, quiet, and quick to start again."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from idempotent.errors import ConfigurationError, MissingExtraError

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


def check_spark() -> None:
    """Check that Spark can be started.

    Raises:
        MissingExtraError: pyspark is not installed.
        ConfigurationError: Java is not installed.
    """
    if find_spec("pyspark") is None:
        raise MissingExtraError("pyspark", "spark")
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        raise ConfigurationError(
            "Spark needs Java 17 or newer: install it, and put java into PATH or set JAVA_HOME"
        )


def start_session() -> SparkSession:
    """A session in this process, with its JVM."""
    from pyspark.sql import SparkSession

    # Spark starts the python3 of PATH otherwise.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,4]").appName("idempotent spark-demo")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
