"""ConsumerProcess: one of the consuming processes, started again after each kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Final

from idempotent.demo.consumers import Job
from idempotent.demo.ended import ConsumerEndedError, last_words
from idempotent.outcomes import Outcome

_GOODBYE_S: Final = 60.0


class ConsumerProcess:
    """Runs, is killed, and runs again.

    Args:
        broker_url: where its messages come from.
        job: what it does with them.
        log: file for what it prints.
    """

    def __init__(self, broker_url: str, job: Job, log: Path) -> None:
        """Not started yet."""
        self._told = json.dumps([broker_url, *job])
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None
        self._ended: Counter[Outcome] = Counter()
        self._now: Counter[Outcome] = Counter()
        self._reader: threading.Thread | None = None

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
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "idempotent.demo.live.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # what can be imported here
                start_new_session=True,  # Ctrl-C is for this process alone
            )
        assert self._child.stdin is not None
        self._child.stdin.write(f"{self._told}\n".encode())
        self._child.stdin.close()
        self._ended, self._now = self.outcomes, Counter()
        self._reader = threading.Thread(target=self._read, args=(self._child,), daemon=True)
        self._reader.start()

    def kill(self) -> None:
        """SIGKILL, whatever it is doing."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._join()

    def stop(self) -> None:
        """Let it finish and settle what it has.

        Raises:
            ConsumerEndedError: it does not end, or not in order.
        """
        if self._child is None:
            return
        self._child.terminate()
        try:
            self._child.wait(_GOODBYE_S)
        except subprocess.TimeoutExpired:
            raise ConsumerEndedError(f"a consumer did not stop: {self.last_words()}") from None
        self._join()
        self.check(may_have_ended=True)
        self._child = None

    def check(self, *, may_have_ended: bool = False) -> None:
        """Whether it still runs, or ended in order.

        Raises:
            ConsumerEndedError: it did not.
        """
        code = None if self._child is None else self._child.poll()
        if code or (code is not None and not may_have_ended):
            raise ConsumerEndedError(f"a consumer ended by itself with code {code}: {self.last_words()}")

    def last_words(self) -> str:
        """The end of what it printed, as one line."""
        return last_words(self._log)

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            if line.endswith(b"\n"):  # not the half of a word of a killed process
                self._now = Counter({Outcome(name): count for name, count in json.loads(line).items()})

    def _join(self) -> None:
        assert self._reader is not None
        self._reader.join()
        assert self._child is not None
        assert self._child.stdout is not None
        self._child.stdout.close()
