"""DriverProcess: the pipeline's driver, killed as planned and started again until all runs are committed."""

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

from idempotent.demo.spark.schedule import Kill
from idempotent.demo.spark.stores import SparkStores
from idempotent.testing.children import ChildEndedError, last_words

_TICK_S: Final = 0.1


class DriverProcess:
    """One driver at a time.

    Args:
        stores: prepared.
        folder: with the files in it.
        dates: of the runs, in order.
        kills: in the order in which they happen.
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
        self._job = json.dumps([stores.ledger_url, stores.database_url, str(folder), list(dates)])
        self._dates = dates
        self._kills = list(kills)
        self._log = folder / "driver.log"
        self._child: subprocess.Popen[bytes] | None = None
        self._reports: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()

    def run(self, on_tick: Callable[[], object]) -> None:
        """Do all runs, through all kills.

        Args:
            on_tick: called at least every 0.1 seconds.

        Raises:
            ChildEndedError: the driver ended before all runs were committed.
        """
        began = time.monotonic()
        try:
            self._start()
            while True:
                on_tick()
                try:
                    report = self._reports.get(timeout=_TICK_S)
                except queue.Empty:
                    continue
                if report is None:
                    break
                self._note(*report)
            self._check()
        finally:
            self.kill()
        self.seconds = time.monotonic() - began
        on_tick()

    def kill(self) -> None:
        """Send SIGKILL to the driver and to its JVM, which would end only later."""
        child = self._child
        if child is None:
            return
        child.kill()
        child.wait()
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    def _start(self) -> None:
        self._reports = queue.SimpleQueue()
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
        child.stdin.write(f"{self._job}\n".encode())
        child.stdin.close()
        threading.Thread(target=_listen, args=(child, self._reports), daemon=True).start()

    def _note(self, date: str, step: str) -> None:
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
            raise ChildEndedError(
                f"the driver ended with code {code} before all runs were committed: {last_words(self._log)}"
            )


def _listen(child: subprocess.Popen[bytes], report: queue.SimpleQueue[tuple[str, str] | None]) -> None:
    """Pass the driver's reports on, and None at its end."""
    assert child.stdout is not None
    with child.stdout as lines:
        for line in lines:
            if line.endswith(b"\n"):  # not half a report of a killed process
                date, step = json.loads(line)
                report.put((date, step))
    report.put(None)
