"""The driver process that the demo kills: `python -m idempotent.demo.spark.child`.

It reads its job from standard input, does all runs in order, and reports each finished step on standard output.
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
    """Read the job, and do it."""
    ledger_url, database_url, folder, dates = json.loads(sys.stdin.readline())
    reports = os.dup(1)
    os.dup2(2, 1)  # Spark's own output goes to the log
    _report(reports, "", "starting")
    spark = start_session()
    _report(reports, "", "started")
    for date in dates:
        run_month(
            spark, SparkStores(ledger_url, database_url), Path(folder), date, partial(_report, reports, date)
        )
    spark.stop()


def _report(reports: int, date: str, step: str) -> None:
    try:
        os.write(reports, f"{json.dumps([date, step])}\n".encode())
    except BrokenPipeError:
        os._exit(1)  # the demo that reads the reports has ended


if __name__ == "__main__":
    main()
