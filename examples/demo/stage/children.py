"""ChildProcess: a Python module in a process of its own, with which a test talks, and which it kills and pauses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from idempotent.errors import IdempotentError

_LAST_LINES: Final = 3


class ChildEndedError(IdempotentError):
    """A process ended unexpectedly, or did not stop in time."""


class ChildProcess:
    """A running `python -m MODULE`. It has no terminal, so Ctrl-C reaches only the calling process.

    Args:
        module: the module to run.
        told: the first line on its standard input, as JSON.
        log: its standard error is appended to this file.
        on_line: called in a thread with each whole line of its standard output.
        environ: environment variables to add.
    """

    def __init__(
        self,
        module: str,
        told: Any,
        log: Path,
        *,
        on_line: Callable[[bytes], object] = lambda _: None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Start it."""
        self._log = log
        self._on_line = on_line
        with log.open("ab") as file:
            self._child = subprocess.Popen(  # noqa: S603 - this Python, and a module of ours
                [sys.executable, "-P", "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                # The child can import what this process can.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environ or {})},
                start_new_session=True,
            )
        self.pid: Final = self._child.pid
        self.tell(told)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def tell(self, told: Any) -> None:
        """Write a line of JSON to its standard input. Does nothing if the process is dead."""
        assert self._child.stdin is not None
        with suppress(BrokenPipeError):
            self._child.stdin.write(f"{json.dumps(told)}\n".encode())
            self._child.stdin.flush()

    def poll(self) -> int | None:
        """The exit code, or minus the number of the signal that killed it; None while it runs."""
        return self._child.poll()

    def is_paused(self) -> bool:
        """Whether it is paused now, as by SIGSTOP."""
        options = os.WSTOPPED | os.WCONTINUED | os.WEXITED | os.WNOHANG | os.WNOWAIT
        with suppress(ChildProcessError):
            found = os.waitid(os.P_PID, self.pid, options)
            return found is not None and found.si_code == os.CLD_STOPPED
        return False

    def pause(self) -> None:
        """Send SIGSTOP: it stalls, with its connections open."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        self._send(signal.SIGCONT)

    def terminate(self) -> None:
        """Send SIGTERM, and do not wait."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to it and to what it started, and wait until it is dead and all its output is read."""
        if self._child.poll() is None:
            with suppress(ProcessLookupError, PermissionError):  # it has just ended
                os.killpg(self.pid, signal.SIGKILL)
        self._child.wait()
        self._close()

    def stop(self, within_s: float) -> int:
        """Send SIGTERM, and return its exit code.

        Raises:
            ChildEndedError: it did not end within `within_s` seconds.
        """
        self.resume()
        self.terminate()
        try:
            code = self._child.wait(within_s)
        except subprocess.TimeoutExpired:
            raise ChildEndedError(
                f"a process did not stop within {within_s:.0f} s: {self.last_words()}"
            ) from None
        self._close()
        return code

    def last_words(self) -> str:
        """The last lines of its log, as one line."""
        return last_words(self._log)

    def _send(self, number: signal.Signals) -> None:
        if self._child.poll() is None:
            self._child.send_signal(number)

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.endswith(b"\n"):  # a killed process may leave half a line
                self._on_line(line)

    def _close(self) -> None:
        self._reader.join()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # closing flushes input that the dead process never read
                pipe.close()


def told_by_parent() -> tuple[Any, Callable[[Any], None]]:
    """In such a process: what it was told first, and a function that writes a line of JSON to its parent.

    What else is printed goes to the log. A report to a parent that has ended ends this process.
    """
    reports = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def report(value: Any) -> None:
        try:
            print(json.dumps(value), file=reports, flush=True)
        except BrokenPipeError:
            os._exit(1)

    return json.loads(sys.stdin.readline()), report


def last_words(log: Path) -> str:
    """The last lines of a log, as one line."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return " / ".join(lines[-_LAST_LINES:]) or "it printed nothing"
