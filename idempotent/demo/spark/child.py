"""The driver, the process that is killed: `python -m idempotent.demo.spark.child`, told its job on standard input.

It does all runs in their order, and says on standard output which step of which run is done.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

from idempotent.demo.spark.pipeline import run_month
from idempotent.demo.spark.session import start_session
from idempotent.demo.spark.stores import SparkStores


def main() -> None:
    """Learn the job, and do it."""
    ledger_url, database_url, folder, dates = json.loads(sys.stdin.readline())
    told = os.dup(1)
    os.dup2(2, 1)  # what Spark prints goes to the log
    _tell(told, "", "starting")
    spark = start_session()
    _tell(told, "", "started")
    for date in dates:
        run_month(
            spark, SparkStores(ledger_url, database_url), Path(folder), date, partial(_tell, told, date)
        )
    spark.stop()


def _tell(told: int, date: str, step: str) -> None:
    try:
        os.write(told, f"{json.dumps([date, step])}\n".encode())
    except BrokenPipeError:
        os._exit(1)  # whoever cannot be told any more is gone


if __name__ == "__main__":
    main()
