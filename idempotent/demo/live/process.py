"""ConsumerProcess: one of the consuming processes, started again after each kill."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Final

from idempotent.demo.consumers import Job
from idempotent.outcomes import Outcome
from idempotent.testing.children import ChildEndedError, ChildProcess, last_words

_GOODBYE_S: Final = 60.0


class ConsumerProcess:
    """Runs, is killed, and runs again.

    Args:
        job: what it does.
        log: file for what it prints.
    """

    def __init__(self, job: Job, log: Path) -> None:
        """Not started yet."""
        self._job = job
        self._log = log
        self._child: ChildProcess | None = None
        self._ended: Counter[Outcome] = Counter()
        self._now: Counter[Outcome] = Counter()

    @property
    def outcomes(self) -> Counter[Outcome]:
        """What it has told so far. What a killed one did last, it could not tell."""
        return self._ended + self._now

    @property
    def at_work(self) -> bool:
        """Whether this process, since its last start, has settled anything."""
        return self._now.total() > 0

    def start(self) -> None:
        """Begin, or begin again."""
        self._ended, self._now = self.outcomes, Counter()
        self._child = ChildProcess("idempotent.demo.child", self._job, self._log, on_line=self._listen)

    def kill(self) -> None:
        """SIGKILL, whatever it is doing."""
        if self._child is not None:
            self._child.kill()

    def stop(self) -> None:
        """Let it finish and settle what it has.

        Raises:
            ChildEndedError: it does not end, or not in order.
        """
        if self._child is None:
            return
        self._child.stop(_GOODBYE_S)
        self.check(may_have_ended=True)
        self._child = None

    def check(self, *, may_have_ended: bool = False) -> None:
        """Whether it still runs, or ended in order.

        Raises:
            ChildEndedError: it did not.
        """
        code = None if self._child is None else self._child.poll()
        if code or (code is not None and not may_have_ended):
            raise ChildEndedError(f"a consumer ended by itself with code {code}: {self.last_words()}")

    def last_words(self) -> str:
        """The end of what it printed, as one line."""
        return last_words(self._log)

    def _listen(self, line: bytes) -> None:
        self._now = Counter({Outcome(name): count for name, count in json.loads(line).items()})
