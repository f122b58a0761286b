"""What the applications of the tests of plug-ins share: notes of what they ran, their checkers and processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from idempotent.checkers import RedisChecker, SqlChecker, TransactionalSqlChecker
from tests.project.house import ROOT

SETTINGS = "TEST_SHOP"
DEADLINE_S = 100


class Notes:
    """What an application ran in all its processes: for its settings.

    Attributes:
        ran: a file with a line for each run.
    """

    ran: str

    def lines(self) -> list[str]:
        path = Path(self.ran)
        return path.read_text().splitlines() if path.exists() else []

    def count(self, *words: str) -> int:
        return self.lines().count(" ".join(words))

    def note(self, what: str) -> None:
        with Path(self.ran).open("a") as file:
            file.write(f"{what}\n")

    def first(self, what: str) -> bool:
        """Whether nobody asked this before."""
        try:
            Path(f"{self.ran}.{what}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class NoCodec:
    """Stores nothing."""

    name = "none/1"

    def encode(self, value: Any) -> bytes:
        raise TypeError

    def decode(self, data: bytes) -> Any:
        raise TypeError


def checker_of(settings: Any, lease_s: float, engine_of: Callable[[str], Any] = str) -> Any:
    """The checker of an application, in the store that its settings name."""
    if settings.url.startswith("redis"):
        return RedisChecker(settings.url, prefix=f"{settings.table}:", lease_s=lease_s)
    if settings.is_transactional:
        return TransactionalSqlChecker(engine_of(settings.url), table=settings.table)
    return SqlChecker(settings.url, table=settings.table, lease_s=lease_s)


def kill(*more: int) -> None:
    """Kill this process, and others before it."""
    for pid in (*more, os.getpid()):
        os.kill(pid, signal.SIGKILL)


@contextmanager
def running(
    words: list[str], settings: Any, dies: str = "", **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Python that finds its settings in the environment, and is stopped in the end."""
    environ = {**os.environ, SETTINGS: json.dumps(asdict(settings)), "DIES": dies}
    process = subprocess.Popen([sys.executable, "-m", *words], cwd=ROOT, env=environ, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
