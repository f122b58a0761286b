"""The example of Kafka, Spark and a table, as a program: `python -m` this module, `batch|stream FOLDER`.

It is to be killed where IDEMPOTENT_CRASH_AT says.
"""

import os
import sys
from pathlib import Path

from idempotent.testing.crashpoints import around
from tests.adapters.spark.support import sessions

# What Spark fetches from Maven Central is kept beside the tests' own servers.
JARS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "idempotent-tests" / "ivy"


def main():
    kind, folder = sys.argv[1:]
    os.chdir(folder)
    from examples import spark_kafka

    settings = {"spark.jars.packages": spark_kafka.CONNECTOR, "spark.jars.ivy": str(JARS)}
    spark = sessions.classic(**sessions.QUICK, **settings)
    getattr(spark_kafka, kind)(spark, around(spark_kafka.insert, "publish"), lease_s=5.0)
    spark.stop()


if __name__ == "__main__":
    main()
