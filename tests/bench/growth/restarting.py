"""A worker is killed in the middle of its work; how long until the next one has settled a message."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.bench.brokers import places
from tests.bench.growth.results import Layout, Restart
from tests.bench.growth.tables import TABLES
from tests.support.services import PrivateServer

ROOT: Final = Path(__file__).parent.parent.parent.parent
_SETTLED_BEFORE: Final = 20


def restarts(
    store: str, server: PrivateServer, *, backlog: int, times: int, on_step: Callable[[str], object]
) -> Iterator[Restart]:
    """Kill workers over a backlog of RabbitMQ, as often as asked; nothing where it is not installed."""
    absent = places.missing("RabbitMQ")
    if absent:
        on_step(f"restarts left out: {absent}")
        return
    on_step("start RabbitMQ")
    with places.open_place("RabbitMQ", backlog) as place:
        subject = place.fill(lambda _: None)
        with _worker(place.url, server.url, subject) as worker:
            _read(worker, _SETTLED_BEFORE)
            worker.send_signal(signal.SIGKILL)
        for number in range(1, times + 1):
            on_step(f"restart {number} of {times}")
            began = time.perf_counter()
            with _worker(place.url, server.url, subject) as worker:
                _read(worker, 1)
                first_s = time.perf_counter() - began
                _read(worker, _SETTLED_BEFORE)
                worker.send_signal(signal.SIGKILL)
            yield Restart("RabbitMQ", store, backlog, round(first_s, 3))


@contextmanager
def _worker(broker: str, store: str, subject: str) -> Iterator[subprocess.Popen[bytes]]:
    words = [
        sys.executable,
        "-m",
        "tests.bench.growth.restarting_child",
        broker,
        store,
        TABLES[Layout.BY_HASH],
        subject,
    ]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def _read(process: subprocess.Popen[bytes], lines: int) -> None:
    assert process.stdout is not None
    for _ in range(lines):
        assert process.stdout.readline(), "the worker ended"
