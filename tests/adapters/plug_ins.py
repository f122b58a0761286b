"""What the tests of plug-ins share: keys of other processes, a store that is away, effects, and the rows of a page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from idempotent import idempotent
from idempotent.testing.proxy import Proxy
from tests.adapters.shops import DEADLINE_S
from tests.project.house import ROOT


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
