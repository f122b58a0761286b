"""A consuming process: `python -m idempotent.demo.live.child`, told its job on standard input.

It says on standard output, over and over, what became of its deliveries. SIGTERM ends it in order.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass

from idempotent.demo.consumers import Job, consume
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.testing.stage.places import place_at

_EVERY_S = 0.1


@dataclass(slots=True)
class Tally:
    """Settled deliveries by outcome."""

    outcomes: Counter[Outcome]

    def count(self, _: Message, result: Result) -> None:
        """One more."""
        self.outcomes[result.outcome] += 1

    def tell(self) -> None:
        """Print it now and then, for ever. Whoever cannot be told any more is gone, and this process goes too."""
        while True:
            self.tell_once()
            time.sleep(_EVERY_S)

    def tell_once(self) -> None:
        """Print it."""
        line = json.dumps({outcome.value: count for outcome, count in self.outcomes.copy().items()})
        try:
            os.write(1, f"{line}\n".encode())
        except BrokenPipeError:
            os._exit(1)


def main() -> None:
    """Learn the job, and do it."""
    broker_url, *job = json.loads(sys.stdin.readline())
    todo = Job(*job)
    tally = Tally(Counter())
    threading.Thread(target=tally.tell, daemon=True).start()
    consume(todo, place_at(broker_url, todo.subject, todo.batch_size).adapter(), tally.count)
    tally.tell_once()


if __name__ == "__main__":
    main()
