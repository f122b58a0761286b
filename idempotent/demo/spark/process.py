"""DriverProcess: the pipeline's driver, killed by plan and started again until all its runs are committed."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from idempotent.demo.ended import ConsumerEndedError
from idempotent.demo.spark.schedule import Kill
from idempotent.demo.spark.stores import SparkStores
from idempotent.testing.children import last_words

_LOOK_EVERY_S: Final = 0.1


class DriverProcess:
    """One driver at a time.

    Args:
        stores: prepared.
        folder: with the files in it.
        dates: the runs, in their order.
        kills: in the order in which they come.
    """

    def __init__(
        self, stores: SparkStores, folder: Path, dates: Sequence[str], kills: Sequence[Kill]
    ) -> None:
        """Not started yet."""
        self.date = dates[0]
        self.step = "starting"
        self.committed: Final[set[str]] = set()
        self.killed_after: Final[Counter[str]] = Counter()
        self.seconds = 0.0
        self._told = json.dumps([stores.ledger_url, stores.database_url, str(folder), list(dates)])
        self._dates = dates
        self._kills = list(kills)
        self._log = folder / "driver.log"
        self._child: subprocess.Popen[bytes] | None = None
        self._said: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()

    def run(self, on_tick: Callable[[], object]) -> None:
        """Do all runs, through all kills.

        Args:
            on_tick: called often meanwhile.

        Raises:
            ConsumerEndedError: the driver ended before its time.
        """
        began = time.monotonic()
        try:
            self._start()
            while True:
                on_tick()
                try:
                    said = self._said.get(timeout=_LOOK_EVERY_S)
                except queue.Empty:
                    continue
                if said is None:
                    break
                self._heard(*said)
            self._check()
        finally:
            self.kill()
        self.seconds = time.monotonic() - began
        on_tick()

    def kill(self) -> None:
        """SIGKILL for the driver; its JVM, which would end by itself, is not waited for either."""
        child = self._child
        if child is None:
            return
        child.kill()
        child.wait()
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    def _start(self) -> None:
        self._said = queue.SimpleQueue()
        with self._log.open("ab") as log:
            self._child = child = subprocess.Popen(
                [sys.executable, "-P", "-m", "idempotent.demo.spark.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # what can be imported here
                start_new_session=True,  # Ctrl-C is for this process alone
            )
        assert child.stdin is not None
        child.stdin.write(f"{self._told}\n".encode())
        child.stdin.close()
        threading.Thread(target=_listen, args=(child, self._said), daemon=True).start()

    def _heard(self, date: str, step: str) -> None:
        self.date, self.step = date or self.date, step
        if step == "committed":
            self.committed.add(date)
        if self._kills and (date, step) == (self._kills[0].date, self._kills[0].step):
            kill = self._kills.pop(0)
            time.sleep(kill.delay_s)
            self.kill()
            self.killed_after[kill.step] += 1
            self._start()

    def _check(self) -> None:
        assert self._child is not None
        code = self._child.wait()
        if code or len(self.committed) < len(self._dates):
            raise ConsumerEndedError(f"the driver ended by itself with code {code}: {last_words(self._log)}")


def _listen(child: subprocess.Popen[bytes], said: queue.SimpleQueue[tuple[str, str] | None]) -> None:
    """Pass on what the driver says; None at its end."""
    assert child.stdout is not None
    with child.stdout as lines:
        for line in lines:
            if line.endswith(b"\n"):  # not the half of a word of a killed process
                date, step = json.loads(line)
                said.put((date, step))
    said.put(None)
