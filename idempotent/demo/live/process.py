"""ConsumerProcess: a consuming process, killed and started again."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Final

from idempotent.demo.consumers import Job
from idempotent.outcomes import Outcome
from idempotent.testing.children import ChildEndedError, ChildProcess, last_words

_STOP_S: Final = 60.0


class ConsumerProcess:
    """One of the consumers.

    Args:
        job: what it does.
        log: file for what it prints.
    """

    def __init__(self, job: Job, log: Path) -> None:
        """Start nothing yet."""
        self._job = job
        self._log = log
        self._child: ChildProcess | None = None
        self._before: Counter[Outcome] = Counter()
        self._now: Counter[Outcome] = Counter()
        self.is_up = False
        """The current process has reported something."""

    @property
    def outcomes(self) -> Counter[Outcome]:
        """What its processes reported so far; the last outcomes of a killed one are missing."""
        return self._before + self._now

    @property
    def at_work(self) -> bool:
        """Whether the current process has settled anything."""
        return self._now.total() > 0

    def start(self) -> None:
        """Start a process."""
        self._before, self._now = self.outcomes, Counter()
        self.is_up = False
        self._child = ChildProcess("idempotent.demo.child", self._job, self._log, on_line=self._listen)

    def kill(self) -> None:
        """SIGKILL."""
        if self._child is not None:
            self._child.kill()

    def stop(self) -> None:
        """SIGTERM: it finishes and settles what it has.

        Raises:
            ChildEndedError: it did not end in time, or failed.
        """
        if self._child is not None:
            code = self._child.stop(_STOP_S)
            # A process that has just started does not handle the signal yet.
            if code and (code != -signal.SIGTERM or self.at_work):
                raise self._ended(code)
            self._child = None

    def check(self) -> None:
        """Raise ChildEndedError if it ended without a kill or a signal."""
        code = None if self._child is None else self._child.poll()
        if code is not None:
            raise self._ended(code)

    def last_words(self) -> str:
        """The end of what it printed, as one line."""
        return last_words(self._log)

    def _ended(self, code: int) -> ChildEndedError:
        return ChildEndedError(f"a consumer ended unexpectedly with code {code}: {self.last_words()}")

    def _listen(self, line: bytes) -> None:
        self.is_up = True
        self._now = Counter({Outcome(name): count for name, count in json.loads(line).items()})
