"""A consuming process: `python -m idempotent.demo.child`, told its job on standard input.

With the simulated broker, standard input and output are the way to it. With a real one the process reports its
outcomes on standard output. SIGTERM lets it finish what it has.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from typing import IO, Final

from idempotent.demo.consumers import Job, consume
from idempotent.demo.pipe import PipeAdapter
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.testing.stage.places import place_at

_EVERY_S: Final = 0.1


class Tally:
    """Settled deliveries by outcome.

    Args:
        sink: where they are reported.
    """

    def __init__(self, sink: IO[str]) -> None:
        """Count from zero."""
        self._outcomes: Counter[Outcome] = Counter()
        self._sink = sink

    def count(self, _: Message, result: Result) -> None:
        """Count one more."""
        self._outcomes[result.outcome] += 1

    def report(self) -> None:
        """Report the counts, as one line."""
        counts = {outcome.value: count for outcome, count in self._outcomes.copy().items()}
        print(json.dumps(counts), file=self._sink, flush=True)

    def report_for_ever(self) -> None:
        """Report the counts now and then, and end this process when the demo is gone."""
        try:
            while True:
                self.report()
                time.sleep(_EVERY_S)
        except BrokenPipeError:
            os._exit(1)


def main() -> None:
    """Read the job, and do it."""
    job = Job(*json.loads(sys.stdin.readline()))
    sink = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints goes to the log
    if job.broker_url is None:
        try:
            consume(job, PipeAdapter(sys.stdin, sink))
        except (EOFError, BrokenPipeError):
            sys.exit("the broker is gone")
        return
    tally = Tally(sink)
    threading.Thread(target=tally.report_for_ever, daemon=True).start()
    consume(job, place_at(job.broker_url, job.subject, job.batch_size).adapter(), tally.count)
    tally.report()


if __name__ == "__main__":
    main()
