"""Processes that start at once: forked from one without threads that has imported everything already.

To the system and to the stores each is a process like any other, to be killed and paused.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    ["tests.guarantees.crash.child", "tests.support.racer", "tests.adapters.conformance_child"]
)
_STACKS_WITHIN_S = 10.0


class Forked:
    """A running process.

    Args:
        function: what it does; importable by its name, as its arguments are picklable.
        arguments: of the function.
        folder: an existing folder for what the process writes to stdout and stderr.
        environ: variables to set there.
    """

    def __init__(
        self,
        function: Callable[..., object],
        *arguments: Any,
        folder: Path,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._process = context.Process(
            target=_run, args=(function, arguments, str(folder), dict(environ or {})), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self._out, self._err = _files(str(folder), self.pid)

    @property
    def out(self) -> bytes:
        return self._out.read_bytes() if self._out.exists() else b""

    @property
    def err(self) -> str:
        return self._err.read_text() if self._err.exists() else ""

    def poll(self) -> int | None:
        """The exit code, minus the signal's number; None while it runs."""
        return self._process.exitcode

    def join(self, timeout_s: float) -> None:
        """Wait until it has ended, but no longer than this."""
        self._process.join(timeout_s)

    def wait(self, timeout_s: float) -> int:
        """Its exit code; an error with the stacks of its threads if it goes on for longer."""
        self.join(timeout_s)
        code = self.poll()
        assert code is not None, f"still running after {timeout_s:g} s, {self._status()}: {self._stacks()}"
        return code

    def is_paused(self) -> bool:
        return self._status() == psutil.STATUS_STOPPED

    def send_signal(self, number: signal.Signals) -> None:
        """Does nothing if it has ended, which `poll` may show a moment later."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def close(self) -> None:
        """End it, if it has not ended."""
        if self.poll() is None:
            self._process.kill()
            self._process.join()

    def _status(self) -> str:
        try:
            return str(psutil.Process(self.pid).status())
        except psutil.NoSuchProcess:
            return "ended"

    def _stacks(self) -> str:
        """What it wrote to stderr, with the stacks of its threads at the end."""
        before, until = len(self.err), time.monotonic() + _STACKS_WITHIN_S
        self.send_signal(signal.SIGCONT)
        self.send_signal(signal.SIGUSR1)
        while len(self.err) == before and time.monotonic() < until:
            time.sleep(0.1)
        time.sleep(0.5)  # the rest of the lines
        return self.err


def _files(folder: str, pid: int) -> tuple[Path, Path]:
    return Path(folder, f"{pid}.out"), Path(folder, f"{pid}.err")


def _run(
    function: Callable[..., object], arguments: tuple[Any, ...], folder: str, environ: dict[str, str]
) -> None:
    for number, path in enumerate(_files(folder, os.getpid()), start=1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    faulthandler.register(signal.SIGUSR1)  # writes the stacks to stderr
    os.environ.update(environ)
    function(*arguments)
