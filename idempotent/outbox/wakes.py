"""Notifier and Listener: wake the relays of other processes by PostgreSQL's NOTIFY."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from idempotent.forks import generation
from idempotent.outbox.store import OutboxStore
from idempotent.stores.sql.cursor import DriverConnection, execute, query

# At most 50 notifications a second, for any number of transactions.
_PAUSE_S: Final = 0.02
_AGAIN_S: Final = 5.0
_LOOK_S: Final = 0.25
_LAST_WAIT_S: Final = 2.0


class Notifier:
    """Tells relays that messages have committed, from a thread with a connection of its own, at most 50 times a second.

    Not in the application's transaction: NOTIFY there takes a lock of the whole server until the COMMIT is on disk, and
    3,294 transactions a second became 869.

    Args:
        store: the outbox.
        channel: the name that relays listen to.
    """

    def __init__(self, store: OutboxStore, channel: str) -> None:
        self._store = store
        self._channel = channel
        self._begin()

    def _begin(self) -> None:
        self._generation = generation.number
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def tell(self) -> None:
        """Notify soon, from any thread. Does no I/O."""
        if self._generation != generation.number:
            self._begin()  # after fork() the thread is the parent's
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="idempotent-notifier", daemon=True)
            self._thread.start()
        self._wanted.set()

    def close(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._wanted.set()
        if self._thread is not None and self._generation == generation.number:
            self._thread.join(_LAST_WAIT_S)

    def _run(self) -> None:
        wanted, stopped = self._wanted, self._stopped
        while wanted.wait() and not stopped.is_set():
            wanted.clear()
            pause_s = _PAUSE_S
            try:
                statement = self._store.connections.dialect.markers("SELECT pg_notify(?, '')")
                self._store.connections.run(query, statement, (self._channel,))
            except Exception:  # relays also look by themselves
                pause_s = _AGAIN_S
            stopped.wait(pause_s)


class Listener:
    """Calls `wake` in a thread of its own for each notification.

    Args:
        store: the outbox, in PostgreSQL.
        channel: the name to listen to.
        wake: is called, and must not wait.
    """

    def __init__(self, store: OutboxStore, channel: str, wake: Callable[[], object]) -> None:
        self._store = store
        self._channel = channel
        self._wake = wake
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="idempotent-listener", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, which gives its connection back."""
        self._stopped.set()
        self._thread.join(_LAST_WAIT_S)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._store.connections.run(self._listen)
            except Exception:  # the relay finds what waits by itself, and tells that the database is away
                self._stopped.wait(_AGAIN_S)

    def _listen(self, driver: DriverConnection) -> None:
        quoted = self._store.connections.dialect.quoted(self._channel)
        execute(driver, f"LISTEN {quoted}", many=True)
        self._wake()  # messages may have committed before this connection listened
        while not self._stopped.is_set():
            began = time.monotonic()
            for _ in driver.raw.notifies(timeout=_LOOK_S, stop_after=1):
                self._wake()
            if time.monotonic() - began < _PAUSE_S:
                self._stopped.wait(_PAUSE_S)
        execute(driver, f"UNLISTEN {quoted}", many=True)


def can_listen(store: OutboxStore) -> bool:
    """Whether the database has notifications, and the driver waits for them in a thread."""
    dialect = store.connections.engine.dialect
    return dialect.name == "postgresql" and not dialect.is_async
