"""Producer: sends the flights, some of them twice, and sends again what it does not know to have arrived."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from typing import Final

from idempotent.adapters.base import Adapter
from idempotent.demo.flights import Flight
from idempotent.errors import AdapterError
from idempotent.message import Message
from idempotent.testing.stage.place import Place

_TOGETHER: Final = 500
_AGAIN_S: Final = 0.5
_PATIENCE_S: Final = 120.0


class Producer:
    """A thread that sends.

    Args:
        place: where to.
        flights: the messages.
        order: their numbers in the order of sending, some of them twice.
    """

    def __init__(self, place: Place, flights: Sequence[Flight], order: Sequence[int]) -> None:
        """Send from `start` on."""
        self.sent = 0
        self.sent_again = 0
        self._place = place
        self._flights = flights
        self._order = order
        self._stopped = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="demo-producer", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def finished(self) -> bool:
        """Everything was taken by the broker.

        Raises:
            AdapterError: it will not be.
        """
        if self._failure is not None:
            raise self._failure
        return self.sent == len(self._order)

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
            adapter = self._place.adapter()
            try:
                while self.sent < len(self._order) and not self._stopped.is_set():
                    numbers = self._order[self.sent : self.sent + _TOGETHER]
                    self._send(adapter, [_message(self._place.subject, self._flights[n]) for n in numbers])
                    self.sent += len(numbers)
            finally:
                adapter.close()
        except Exception as error:
            self._failure = error

    def _send(self, adapter: Adapter, messages: list[Message]) -> None:
        until, again = time.monotonic() + _PATIENCE_S, 0
        while not self._stopped.is_set():
            try:
                adapter.publish_many(messages)
            except AdapterError:
                # Perhaps some of them arrived: that is what the consumer's checker is for.
                if time.monotonic() > until:
                    raise
                again = len(messages)
                self._stopped.wait(_AGAIN_S)
            else:
                self.sent_again += again
                return


def _message(subject: str, flight: Flight) -> Message:
    return Message(subject, json.dumps(flight._asdict()).encode(), id=flight.flight)
