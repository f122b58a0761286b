"""Delta Lake and Iceberg under the newest Spark that both run under, beside the one that the other tests use."""

import os
import subprocess
import sys
from pathlib import Path

from tests.adapters.spark.support import sessions
from tests.support.services.maven import fetched, kept

SPARK = "4.1.4"
_POM = Path(__file__).with_name("lakes-pom.xml")
_EXTENSIONS = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}


def environment():
    """With that Spark's Python before the installed one."""
    requirement = f"pyspark=={SPARK}"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", requirement, "--target"]
    folder = kept("pyspark", requirement.encode(), lambda fresh: _run([*install, str(fresh)]))
    return {
        "PYTHONPATH": os.pathsep.join([str(sessions.ROOT), str(folder)]),
        "SPARK_HOME": str(folder / "pyspark"),
    }


def settings(sink, folder):
    """Of a session that has this format, with its tables in this folder."""
    jars = sorted(str(jar) for jar in fetched(_POM, "lakes", _run).iterdir())
    catalogs = {
        "delta": {"spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"},
        "iceberg": {
            "ice": "org.apache.iceberg.spark.SparkCatalog",
            "ice.type": "hadoop",
            "ice.warehouse": str(folder),
        },
    }
    return {
        "spark.jars": ",".join(jars),
        # As it comes it takes fifty tasks to read a table's log.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.extensions": _EXTENSIONS[sink],
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        **{f"spark.sql.catalog.{name}": value for name, value in catalogs[sink].items()},
    }


def _run(command):
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)
