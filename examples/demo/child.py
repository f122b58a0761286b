"""A consuming process: `python -m examples.demo.child`, told its job on standard input.

With the simulated broker, standard input and output are the way to it. With a real one the process reports its
outcomes on standard output. SIGTERM lets it finish what it has.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from examples.demo.broker import PipeAdapter
from examples.demo.consumers import Job, consume
from examples.demo.stage.children import told_by_parent
from examples.demo.stage.places import place_at
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result

_EVERY_S: Final = 0.1


def main() -> None:
    """Read the job, and do it."""
    told, report = told_by_parent()
    job = Job(*told)
    if job.broker_url is None:
        consume(job, PipeAdapter(sys.stdin, report))
        return
    with outcomes_told(report) as count:
        consume(job, place_at(job.broker_url, job.subject, job.batch_size).adapter(), count)


@contextmanager
def outcomes_told(report: Callable[[Any], None]) -> Iterator[Callable[[Message, Result], None]]:
    """Tell the parent again and again how often each outcome was met; yields what is called with each message."""
    outcomes: Counter[Outcome] = Counter()

    def report_outcomes() -> None:
        report({outcome.value: count for outcome, count in outcomes.copy().items()})

    def report_for_ever() -> None:
        while True:
            report_outcomes()
            time.sleep(_EVERY_S)

    def count(_: Message, result: Result) -> None:
        outcomes[result.outcome] += 1

    threading.Thread(target=report_for_ever, daemon=True).start()
    yield count
    report_outcomes()


if __name__ == "__main__":
    main()
