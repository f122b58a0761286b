"""Brokers: whether they answer a client, which tells their loss in errors, and their return in statistics alone."""

from __future__ import annotations

import json
import time
from typing import Any, Final

from idempotent.adapters.kafka.client import (
    ALL_BROKERS_DOWN,
    KafkaError,
    KafkaException,
    is_for_good,
    why_unreachable,
)
from idempotent.logs import EventLog

log = EventLog(__name__)
_ANSWER_S: Final = 10.0
_LOOK_S: Final = 0.5
_SILENCE_S: Final = 10.0


class Brokers:
    """What one client has said of its brokers.

    Args:
        where: the addresses, for people.
    """

    def __init__(self, where: str) -> None:
        """Know nothing yet."""
        self._where = where
        self.is_up = False
        """Whether a broker answers for certain."""
        self.is_away = False
        """Whether it is certain that none answers."""
        self.was_up = False
        """Whether one has answered before."""
        self.fault: str | None = None
        """Why no other attempt can succeed. Only of a client that was never connected."""
        self._last_error: KafkaError | None = None
        self._has_complained, self._complained_at = False, -_SILENCE_S

    @property
    def complaint(self) -> str | None:
        """Why no broker answers; None while one does, and before the first error."""
        last = self._last_error
        return None if last is None else why_unreachable(last, was_up=self.was_up)

    def on_error(self, error: KafkaError) -> None:
        """Note an error of the client: its `error_cb`."""
        all_down = error.code() == ALL_BROKERS_DOWN
        if not all_down or self._last_error is None:
            self._last_error = error
        if not self.was_up and is_for_good(error):
            self.fault = self.complaint
            return
        if all_down:
            self.is_up, self.is_away = False, True
        if time.monotonic() - self._complained_at > _SILENCE_S:
            self._has_complained, self._complained_at = True, time.monotonic()
            log.warning("broker_unreachable", extra={"broker": self._where, "error": self.complaint})

    def on_statistics(self, text: str) -> None:
        """Note the client's statistics: its `stats_cb`."""
        was_up = self.is_up
        brokers = json.loads(text).get("brokers", {}).values()
        self.is_up = any(broker.get("state") == "UP" for broker in brokers)
        self.is_away = not self.is_up
        if not self.is_up:
            return
        self.was_up, self.fault, self._last_error = True, None, None
        if self._has_complained and not was_up:
            # As loud as the loss, or a log of warnings never shows its end.
            log.warning("broker_connected", extra={"broker": self._where})
            self._has_complained, self._complained_at = False, -_SILENCE_S

    def meet(self, client: Any) -> None:
        """Wait for an answer, for ten seconds, or until it is certain that none will come.

        Raises:
            KafkaException: none came.
        """
        until = time.monotonic() + _ANSWER_S
        while True:
            try:
                client.list_topics(timeout=_LOOK_S)
            except KafkaException:
                client.poll(0)  # calls `on_error`
                if self.fault is None and time.monotonic() < until:
                    continue
                raise
            return
