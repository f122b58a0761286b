"""A server program of this machine, run for the tests alone."""

import fcntl
import functools
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TextIO

import psutil

from tests.support.services.waiting import wait_until_it_answers

STOP_TIMEOUT_S = 20.0
# Below the ports the kernel gives to outgoing connections, so that none takes the port of a stopped server.
PORTS = range(20_000, 32_000)
_reserved: set[int] = set()


class ServerFailedError(RuntimeError):
    """A server program is installed but did not do what it was told; the text ends with its log."""


class PrivateServer(ABC):
    """One server in a temporary folder, on a free port of 127.0.0.1.

    `stop()`, `kill()` and `start()` keep the port and the data, so that a test can play an outage;
    `pause()` and `resume()` freeze it with its connections open. `close()` removes everything.
    A kill of the program loses no acknowledged write; the settings only skip what guards against a power cut.

    Start it from the main thread: the kernel ends the server together with the thread that started it.
    """

    name: ClassVar[str]
    debian_package: ClassVar[str]
    programs: ClassVar[tuple[str, ...]]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    # Who runs it when the tests run as root, for a program that refuses root.
    account: ClassVar[str | None] = None

    def __init__(self, *options: str) -> None:
        """Takes more options for the server's command line."""
        self.options = options
        self.folder = Path(tempfile.mkdtemp(prefix="idem-"))
        self.port = free_port()
        self._user = self.account if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_prepared = False

    @classmethod
    def find(cls, program: str) -> str | None:
        return shutil.which(program)

    @classmethod
    def missing(cls) -> str | None:
        """What is not installed here, or None when nothing is missing."""
        absent = [program for program in cls.programs if cls.find(program) is None]
        if absent:
            return f"{', '.join(absent)} not found; install the package {cls.debian_package}"
        if os.geteuid() == 0 and cls.account is not None and not _account_exists(cls.account):
            return f"{cls.name} refuses to run as root and there is no account {cls.account!r}"
        return None

    @property
    @abstractmethod
    def url(self) -> str: ...

    @staticmethod
    @abstractmethod
    def ping(url: str) -> None:
        """Raises any exception while the server at `url` does not answer."""

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _prepare(self) -> None:
        """Fills the data folder, once."""

    def start(self) -> None:
        """Returns when the server answers. Started again, it has its old port and data."""
        if not self._is_prepared:
            self._prepare()
            self._is_prepared = True
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*die_with_this_process(), *self._command(), *self.options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C is for pytest, which then stops the servers in order.
                start_new_session=True,
                **self._identity(),
            )
        wait_until_it_answers(lambda: self.ping(self.url), self._check_alive)

    def stop(self) -> None:
        """Ends it in order. Does nothing when it does not run."""
        process = self._process
        if process is None:
            return
        self.resume()
        process.send_signal(self.stop_signal)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """SIGKILL, for it and its children. Does nothing when it does not run."""
        if self._process is None:
            return
        family = self._family()
        for member in family:
            _if_it_lives(member.kill)
        self._process.wait(STOP_TIMEOUT_S)
        _wait_until_ended(family)
        self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def recover(self) -> None:
        """Make it answer, whatever a test has done to it."""
        if self._process is not None and self._process.poll() is None:
            self.resume()
        else:
            self.start()

    def start_if_ended(self) -> None:
        """Start it again if it ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nobody answers."""
        family = self._family()
        for member in family:
            _if_it_lives(member.suspend)
        # A process stops when the kernel next looks at its signals, which is soon, but not now.
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while any(runs(member) and member.status() != psutil.STATUS_STOPPED for member in family):
            if time.monotonic() > deadline:
                raise ServerFailedError(f"{self.name} does not pause")
            time.sleep(0.005)

    def resume(self) -> None:
        for member in self._family():
            _if_it_lives(member.resume)

    def close(self) -> None:
        """Ends it at once and removes its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log_tail(self, lines: int = 20) -> str:
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def state(self) -> str:
        """For people: whether the program runs, and what the kernel says of it."""
        if self._process is None:
            return "stopped"
        code = self._process.poll()
        if code is not None:
            return f"ended by itself with {code}"
        return f"runs: {psutil.Process(self._process.pid).status()}"

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **self._identity(),
        )
        if done.returncode != 0:
            output = done.stdout.decode(errors="replace")
            raise ServerFailedError(f"{command[0]} failed with {done.returncode}:\n{output}")

    def _identity(self) -> dict[str, Any]:
        if self._user is None:
            return {"cwd": self.folder}
        entry = pwd.getpwnam(self._user)
        return {"cwd": self.folder, "user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

    def _check_alive(self) -> None:
        process = self._process
        if process is not None and process.poll() is not None:
            raise ServerFailedError(f"{self.name} ended with {process.returncode}:\n{self.log_tail()}")

    def _family(self) -> list[psutil.Process]:
        # PostgreSQL serves each connection from a process with a group of its own.
        if self._process is None or self._process.poll() is not None:
            return []
        leader = psutil.Process(self._process.pid)
        return [leader, *leader.children(recursive=True)]


def free_port() -> int:
    """A port that nobody listens at, and that no other process of tests gets as long as this one lives."""
    while True:
        port = random.choice(PORTS)
        if not _reserve(port):
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _reserve(port: int) -> bool:
    # Seconds pass before the server takes it, and others look for ports meanwhile.
    if port in _reserved:
        return False
    try:
        fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    _reserved.add(port)
    return True


@functools.cache
def _reservations() -> TextIO:
    """A file whose locked bytes are the ports of all test processes; the kernel unlocks those of a dead one."""
    return (Path(tempfile.gettempdir()) / f"idempotent-test-ports-{os.geteuid()}").open("w")


def _account_exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def die_with_this_process() -> list[str]:
    """A command prefix by which the kernel ends the server when the tests are killed; Linux only."""
    setpriv = shutil.which("setpriv")
    return [] if setpriv is None else [setpriv, "--pdeathsig", "KILL"]


def runs(process: psutil.Process) -> bool:
    """Whether it still does anything: an orphan may stay a zombie for as long as process 1 likes."""
    try:
        return bool(process.status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD})
    except psutil.NoSuchProcess:
        return False


def _wait_until_ended(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while any(runs(process) for process in processes):
        if time.monotonic() > deadline:
            raise ServerFailedError(f"{processes} survived SIGKILL")
        time.sleep(0.01)


def _if_it_lives(act: Callable[[], None]) -> None:
    try:
        act()
    except psutil.NoSuchProcess:
        return
