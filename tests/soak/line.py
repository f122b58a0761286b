"""Line: a broker, a store, the processes that work between them, and who sends."""

from __future__ import annotations

import random
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from sqlalchemy import Engine, MetaData, func, select

from examples.demo.stage.places import place_at
from idempotent import Message
from idempotent.schema import dedup_tables
from tests.bench.checkers import effects, engine_at
from tests.soak.child import BATCH

ROOT: Final = Path(__file__).parent.parent.parent
_DUPLICATES: Final = 0.05
_RECENT: Final = 1000
_END_S: Final = 60.0
_WORKERS: Final = 2


@dataclass(frozen=True, slots=True)
class Reading:
    """A process at one moment.

    Attributes:
        at_s: since the beginning.
        process: its name.
        effects: of all processes of its line by then.
        keys: that its line's store has.
        resident_bytes: memory.
        descriptors: open files and sockets.
    """

    at_s: float
    process: str
    effects: int
    keys: int
    resident_bytes: int
    descriptors: int


class Line:
    """Two workers, and messages at an even rate, some of them twice.

    Args:
        name: for people.
        broker: its URL.
        store: its URL.
        prefix: what makes a checker's URL of the store's.
        rate: messages a second.
    """

    def __init__(self, name: str, broker: str, store: str, prefix: str, rate: int) -> None:
        """Make the tables and the queue; nobody works yet."""
        self.name = name
        self.sent = 0
        self._rate = rate
        self._engine: Engine = engine_at(store)
        self._keys = dedup_tables(MetaData()).keys
        self._subject = f"soak-{secrets.token_hex(4)}"
        self._place = place_at(broker, self._subject, BATCH)
        self._place.make()
        words = [broker, prefix + store, self._subject]
        self._command = [sys.executable, "-m", "tests.soak.child", *words]
        self._children: list[psutil.Popen] = []
        self._stopped = threading.Event()
        self._failure: Exception | None = None
        self._sender = threading.Thread(target=self._send, daemon=True)

    def start(self) -> None:
        """Begin to send, and to start the workers."""
        self._children = [psutil.Popen(self._command, cwd=ROOT) for _ in range(_WORKERS)]
        self._sender.start()

    def wait_for_work(self) -> None:
        """Wait until each worker is connected and a message has an effect: a busy machine takes its time to start them.

        Raises:
            RuntimeError: a process has ended, or does not connect, or none works.
        """
        for _ in range(round(_END_S)):
            self._check()
            # To the broker and to the store.
            connected = [len(child.net_connections("tcp")) > 1 for child in self._children]
            if all(connected) and self.count_effects()[1]:
                return
            time.sleep(1.0)
        raise RuntimeError(
            f"{self.name}: {sum(connected)} workers are connected, and no message has an effect"
        )

    def read(self, at_s: float) -> Iterator[Reading]:
        """Each process as it is now.

        Raises:
            RuntimeError: a process has ended.
        """
        self._check()
        done, _ = self.count_effects()
        with self._engine.connect() as connection:
            keys = connection.execute(select(func.count()).select_from(self._keys)).scalar_one()
        for number, child in enumerate(self._children, start=1):
            memory, descriptors = child.memory_info().rss, child.num_fds()
            yield Reading(at_s, f"{self.name} {number}", done, keys, memory, descriptors)

    def count_effects(self) -> tuple[int, int]:
        """How many there are, and of how many messages."""
        count = select(func.count(), func.count(effects.c.message.distinct()))
        with self._engine.connect() as connection:
            all_of_them, distinct = connection.execute(count).one()
        return all_of_them, distinct

    def finish(self) -> None:
        """Send nothing more, and let them work until nothing is left.

        Raises:
            RuntimeError: a process has ended, or something is left.
        """
        self._stopped.set()
        self._sender.join(_END_S)
        for _ in range(round(_END_S)):
            self._check()
            if self.count_effects()[1] >= self.sent:
                return
            time.sleep(1.0)
        raise RuntimeError(f"{self.name}: of {self.sent} messages {self.count_effects()[1]} have an effect")

    def close(self) -> None:
        """End the processes, and remove the queue."""
        self._stopped.set()
        for child in self._children:
            child.terminate()
        for child in self._children:
            try:
                child.wait(_END_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait(_END_S)
        self._place.remove()
        self._engine.dispose()

    def _check(self) -> None:
        if self._failure is not None:
            raise RuntimeError(f"{self.name}: nothing can be sent: {self._failure!r}") from self._failure
        ended = [child.returncode for child in self._children if child.poll() is not None]
        if ended:
            raise RuntimeError(f"{self.name}: a worker ended with {ended[0]}")

    def _send(self) -> None:
        chance = random.Random(self._subject)
        try:
            adapter = self._place.adapter()
            while not self._stopped.wait(1.0):
                fresh = range(self.sent, self.sent + self._rate)
                again = chance.choices(
                    range(max(self.sent - _RECENT, 0), fresh.stop), k=round(self._rate * _DUPLICATES)
                )
                adapter.publish_many(
                    [Message(self._subject, b"x" * 200, id=str(number)) for number in (*fresh, *again)]
                )
                self.sent = fresh.stop
            adapter.close()
        except Exception as error:
            self._failure = error
