"""What the tests of plug-ins share: what a worker ran, its checker and its process, and the rows of a page."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from idempotent import idempotent
from idempotent.checkers import RedisChecker, SqlChecker, TransactionalSqlChecker
from idempotent.testing.proxy import Proxy
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


def effects(settings: Any) -> list[str]:
    """What handlers have written into the database."""
    engine = sa.create_engine(settings.url)
    with engine.connect() as connection:
        found = list(connection.scalars(sa.text(f"SELECT id FROM {settings.table}_effects")))
    engine.dispose()
    return found


@contextmanager
def held(checker: Any, name: str, key: str, group: str = "tests") -> Iterator[None]:
    """Another process has the key, and fails in the end."""
    began, end = threading.Event(), threading.Event()

    @idempotent(checker, name=name, group=group, key="key")
    def run(key: str) -> None:
        began.set()
        end.wait(DEADLINE_S)
        raise InterruptedError

    def fail() -> None:
        with pytest.raises(InterruptedError):
            run(key)

    thread = threading.Thread(target=fail)
    thread.start()
    assert began.wait(DEADLINE_S)
    try:
        yield
    finally:
        end.set()
        thread.join()


def bury(checker: Any, name: str, key: str, group: str = "tests") -> None:
    """Let a key be dead."""

    @idempotent(checker, name=name, group=group, key="key", dead_for=ZeroDivisionError)
    def run(key: str) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(key)


@contextmanager
def proxied(url: str) -> Iterator[tuple[Proxy, str]]:
    """A proxy to a server, and the URL of the server behind it."""
    parts = sa.make_url(url)
    with closing(Proxy(parts.host, parts.port)) as proxy:
        yield proxy, parts.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)


class Rows:
    """Decorates tests with the rows that they prove of the table of a page.

    Args:
        page: a file of docs/.
        head: the first cell of the table's head.
    """

    def __init__(self, page: str, head: str) -> None:
        self.page, self.head = page, head
        self.proved: set[tuple[str, ...]] = set()

    def __call__(self, *cells: str) -> Callable[[Any], Any]:
        self.proved.add(cells)
        return lambda test: test

    def on_page(self) -> set[tuple[str, ...]]:
        text = (ROOT / "docs" / self.page).read_text()
        table = text.partition(f"| {self.head} |")[2].partition("\n\n")[0].splitlines()[2:]
        return {tuple(cell.strip() for cell in line.strip("| ").split(" | ")) for line in table}
