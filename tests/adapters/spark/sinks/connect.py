"""publication.jdbc on Spark Connect: `python -m tests.adapters.spark.sinks.connect ARGUMENTS`."""

import json
import sys

from idempotent.adapters.spark import IdempotentRun, StoreConfig
from tests.adapters.spark.programs import report
from tests.adapters.spark.support import sessions
from tests.adapters.spark.support.frames import numbered


def main() -> None:
    arguments = json.loads(sys.argv[1])
    frame = numbered(sessions.connect())

    def rows_in_a_table() -> list[bool]:
        published = []
        for _ in range(2):
            with IdempotentRun.begin(
                StoreConfig(**arguments["store"]), consumer="connect", run_id="r1"
            ) as run:
                staged = run.stage(run.dedup(frame, key="k", unique=True), arguments["staging"])
                published.append(
                    run.publish(lambda publication, rows=staged: publication.jdbc(rows, arguments["table"]))
                )
        return published

    report(rows_in_a_table)


if __name__ == "__main__":
    main()
