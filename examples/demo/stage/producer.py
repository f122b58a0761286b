"""Producer: sends batches of messages, each again until the broker has confirmed it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from idempotent.adapters.base import Adapter
from idempotent.errors import AdapterError
from idempotent.message import Message

_AGAIN_S: Final = 0.2
_GIVE_UP_S: Final = 120.0


class Producer:
    """A thread that sends.

    Args:
        make_adapter: returns a new adapter of the broker; called again after each failure.
        batches: what to send. Read in the thread: the next batch when the one before is confirmed.

    Attributes:
        sent_again: messages sent again because the broker did not confirm them.
    """

    def __init__(self, make_adapter: Callable[[], Adapter], batches: Iterable[list[Message]]) -> None:
        self.sent_again = 0
        self._make_adapter = make_adapter
        self._batches = batches
        self._adapter: Adapter | None = None
        self._stopped = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def finished(self) -> bool:
        """Whether the broker has confirmed everything. Raises AdapterError: it took longer than two minutes."""
        if self._failure is not None:
            raise self._failure
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait for the end. Raises as `finished`."""
        self._thread.join()
        _ = self.finished

    def stop(self) -> None:
        """Send nothing more."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            for batch in self._batches:
                self._send(batch)
                if self._stopped.is_set():
                    break
        except Exception as error:
            self._failure = error
        finally:
            self._close()

    def _send(self, batch: list[Message]) -> None:
        until, failed = time.monotonic() + _GIVE_UP_S, False
        while not self._stopped.is_set():
            try:
                self._adapter = self._adapter or self._make_adapter()
                self._adapter.publish_many(batch)
                break
            except AdapterError:
                # Some of them may have arrived: the consumer's checker skips the copies.
                failed = True
                self._close()
                if time.monotonic() > until:
                    raise
                self._stopped.wait(_AGAIN_S)
        self.sent_again += len(batch) if failed else 0

    def _close(self) -> None:
        if self._adapter is not None:
            with suppress(AdapterError):
                self._adapter.close()
        self._adapter = None
