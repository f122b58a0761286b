"""Survey: measures an outbox, and looks for messages that no publisher of a relay is for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from idempotent.checkers.rounds import Rounds
from idempotent.errors import StoreError
from idempotent.logs import EventLog
from idempotent.observe.observers import Observers
from idempotent.outbox.outbox import Outbox

log = EventLog(__name__)

_LOOK_S: Final = 1.0
_MEASURE_S: Final = 15.0
_OTHERS_S: Final = 60.0


class Survey:
    """Works in a thread of its own: to count many messages takes a while.

    Args:
        outbox: what is measured.
        names: the destinations of the relay.
        observers: are told the measures.
    """

    def __init__(self, outbox: Outbox, names: Sequence[str], observers: Observers) -> None:
        self._outbox = outbox
        self._names = names
        self._observers = observers
        self._next_measure = self._next_others = 0.0
        self._rounds: Rounds | None = None

    def start(self) -> None:
        """Begin."""
        self._rounds = Rounds(self._work, "idempotent-relay-survey", _LOOK_S)

    def stop(self) -> None:
        """Begin no more."""
        if self._rounds is not None:
            self._rounds.stop()

    def _work(self) -> bool:
        now = time.monotonic()
        with suppress(StoreError):  # the lines tell that the database is away
            if now >= self._next_measure:
                self._next_measure = now + _MEASURE_S
                self._observers.measured(self._outbox.channel, self._outbox.store.stats())
            if now >= self._next_others:
                self._next_others = now + _OTHERS_S
                self._look_for_others()
        return True

    def _look_for_others(self) -> None:
        other = self._outbox.store.other_destination(self._names)
        if other is not None:
            hint = "unless another relay has one, give this one a publisher of that name"
            log.warning("relay_has_no_publisher", extra={"destination": other, "hint": hint})
