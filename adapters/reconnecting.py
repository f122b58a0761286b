"""Reconnecting: when to try a lost or missing connection again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from idempotent.errors import AdapterError
from idempotent.logs import EventLog
from idempotent.policy import Backoff

log = EventLog(__name__)

# So that a fleet does not reconnect at once.
_JITTER: Final = 0.5
# librdkafka too asks at least every five seconds; longer waits would leave a fleet idle after the broker is back.
RECONNECT: Final = Backoff(initial_s=0.2, maximum_s=5.0)
DOUBT_AFTER_S: Final = 60.0
"""After this long without a message a broker that may remove a consumer without a word is asked about it."""


class Reconnecting:
    """The waits between attempts to connect. The owner asks for the remaining time and never sleeps here.

    Args:
        where: the broker, without credentials, for logs and errors.
        backoff: the waits; without a jitter, each is shortened at random by up to half.
        fail_fast: raise when the very first attempt fails.
        clock: seconds; injectable for tests.
    """

    def __init__(
        self,
        where: str,
        *,
        backoff: Backoff = RECONNECT,
        fail_fast: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The first attempt is due at once."""
        self.where = where
        self._backoff = backoff if backoff.jitter else replace(backoff, jitter=_JITTER)
        self._fail_fast = fail_fast
        self._clock = clock
        self._failures = 0
        self._was_connected = False
        self._next = clock()

    @property
    def wait_s(self) -> float:
        """Seconds until the next attempt is due; 0 if it is due now."""
        return max(self._next - self._clock(), 0.0)

    @property
    def was_connected(self) -> bool:
        """Whether an attempt has succeeded."""
        return self._was_connected

    def succeeded(self) -> None:
        """Connected. After the next loss, the first attempt is due at once."""
        if self._failures or self._was_connected:
            # As loud as the loss, or a log of warnings never shows its end.
            log.warning("broker_connected", extra={"broker": self.where, "attempts": self._failures + 1})
        self._failures = 0
        self._was_connected = True
        self._next = self._clock()

    def failed(self, error: BaseException) -> None:
        """An attempt failed; the next one is due after the backoff.

        Raises:
            AdapterError: it was the very first attempt, and `fail_fast` is set.
        """
        if self._fail_fast and not self._was_connected:
            raise AdapterError(f"cannot connect to {self.where}: {describe(error)}") from error
        self._failures += 1
        wait_s = self._backoff.delay_s(self._failures)
        self._next = self._clock() + wait_s
        log.warning(
            "broker_unreachable",
            extra={"broker": self.where, "error": describe(error), "next_try_s": round(wait_s, 1)},
        )

    def lost(self, error: BaseException) -> None:
        """An open connection was lost; the broker delivers its unsettled messages again."""
        log.warning("broker_connection_lost", extra={"broker": self.where, "error": describe(error)})
        self._next = self._clock()


def describe(error: BaseException) -> str:
    """An error in one line, for logs."""
    return " ".join(str(error).split()) or type(error).__name__
