"""Notifier and Listener: wake the relays of other processes by PostgreSQL's NOTIFY."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from idempotent.checkers.repeating import RepeatingThread
from idempotent.outbox.store import OutboxStore
from idempotent.stores.sql.cursor import DriverConnection, execute

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
        self._thread = RepeatingThread(self._notify, "idempotent-notifier", None)

    def tell(self) -> None:
        """Notify soon, from any thread. Does no I/O."""
        with suppress(RuntimeError):  # no more threads: all has committed, and relays also look by themselves
            self._thread.start()
            self._thread.wake()

    def close(self) -> None:
        """End the thread. A later `tell` starts it again."""
        self._thread.stop(_LAST_WAIT_S)

    def _notify(self) -> None:
        self._thread.pause_s = _PAUSE_S
        try:
            self._store.ask("SELECT pg_notify(?, '')", self._channel)
        except Exception:  # relays also look by themselves
            self._thread.pause_s = _AGAIN_S


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
        self._thread = RepeatingThread(self._listen_until_lost, "idempotent-listener", _AGAIN_S)
        self._thread.start()
        self._thread.wake()

    def stop(self) -> None:
        """End the thread, which gives its connection back."""
        self._thread.stop(_LAST_WAIT_S)

    def _listen_until_lost(self) -> None:
        with suppress(Exception):  # the relay finds what waits by itself, and tells that the database is away
            self._store.connections.run(self._listen)

    def _listen(self, driver: DriverConnection) -> None:
        quoted = self._store.connections.dialect.quoted(self._channel)
        execute(driver, f"LISTEN {quoted}", many=True)
        self._wake()  # messages may have committed before this connection listened
        while self._thread.runs:
            began = time.monotonic()
            for _ in driver.raw.notifies(timeout=_LOOK_S, stop_after=1):
                self._wake()
            if time.monotonic() - began < _PAUSE_S:
                time.sleep(_PAUSE_S)
        execute(driver, f"UNLISTEN {quoted}", many=True)


def can_listen(store: OutboxStore) -> bool:
    """Whether the database has notifications, and the driver waits for them in a thread."""
    dialect = store.connections.engine.dialect
    return dialect.name == "postgresql" and not dialect.is_async
