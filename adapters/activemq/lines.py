"""Line: connections to ActiveMQ, each made when the one before it is lost, without waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from idempotent.adapters.activemq.connection import StompConnection, Subscription
from idempotent.adapters.activemq.options import StompSettings
from idempotent.adapters.activemq.refusals import LostError, RefusedError, UntrustedError
from idempotent.adapters.reconnecting import Reconnecting
from idempotent.errors import AdapterError
from idempotent.policy import Backoff

_LOOK_S: Final = 0.05
# A connection this short was probably ended by one of its own messages: back off.
_SHORT_LIFE_S: Final = 1.0


class Line:
    """One connection at a time: attempt after attempt, each in a thread, when `Reconnecting` says that one is due.

    Args:
        settings: of the broker and the subscriptions.
        arrived: set when a frame may have arrived, or an attempt has ended.
        purpose: for logs, after the name of the broker.
        backoff: between attempts to connect.
        fail_fast: raise when the very first attempt fails.
    """

    def __init__(
        self,
        settings: StompSettings,
        arrived: threading.Event,
        *,
        purpose: str = "",
        backoff: Backoff,
        fail_fast: bool,
    ) -> None:
        self.connection: StompConnection | None = None
        """Open and subscribed; None: lost, or not made yet."""
        self.subscriptions: Sequence[Subscription] = ()
        """Of each new connection."""
        self._settings = settings
        self._arrived = arrived
        self._reconnecting = Reconnecting(
            f"{settings.address}{purpose}", backoff=backoff, fail_fast=fail_fast
        )
        self._attempt: _Attempt | None = None
        self._opened_at = 0.0

    def upkeep(self) -> None:
        """Serve the connection, or go on connecting. Returns soon.

        Raises:
            LostError: the connection is lost; the caller says so with `lose`.
            AdapterError: the next attempt would fail in the same way.
        """
        if self.connection is not None:
            self.connection.upkeep()
        elif self._attempt is not None:
            self._finish(self._attempt)
        elif self._reconnecting.wait_s == 0:
            self._attempt = _Attempt(StompConnection(self._settings, self._arrived), self.subscriptions)
            self._attempt.start(self._arrived)

    def connected(self, serve: Callable[[], None]) -> StompConnection:
        """Wait for a connection, at most as long as an attempt may take.

        Args:
            serve: called meanwhile; it calls `upkeep`.

        Raises:
            AdapterError: no connection was made in that time.
        """
        until = time.monotonic() + self._settings.connect_timeout_s
        while True:
            serve()
            if self.connection is not None:
                return self.connection
            if time.monotonic() > until:
                raise AdapterError(f"cannot connect to {self._settings.address}")
            self.pause()

    def pause(self) -> None:
        """Wait a moment for a frame, or for the end of an attempt."""
        self._arrived.wait(_LOOK_S)
        self._arrived.clear()

    def lose(self, error: LostError) -> None:
        """End the connection: the broker delivers its unsettled messages again."""
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abort()
            self._reconnecting.lost(error)
            if time.monotonic() - self._opened_at < _SHORT_LIFE_S:
                self._reconnecting.failed(error)

    def close(self) -> None:
        """Disconnect when the broker has processed what was sent, or abort the attempt in progress."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.cancel()
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.disconnect()

    def _finish(self, attempt: _Attempt) -> None:
        if not attempt.has_ended:
            return
        self._attempt = None
        if attempt.error is None:
            self._reconnecting.succeeded()
            self.connection, self._opened_at = attempt.connection, time.monotonic()
        elif isinstance(attempt.error, LostError) or type(attempt.error) is RefusedError:
            self._reconnecting.failed(attempt.error)
        elif isinstance(attempt.error, UntrustedError) and self._reconnecting.was_connected:
            # A certificate that is being replaced; a worker that ran goes on when it is.
            self._reconnecting.failed(attempt.error)
        else:
            raise attempt.error


class _Attempt:
    def __init__(self, connection: StompConnection, subscriptions: Sequence[Subscription]) -> None:
        self.connection = connection
        self.error: Exception | None = None
        self.has_ended = False
        self._subscriptions = subscriptions
        self._thread: threading.Thread | None = None

    def start(self, arrived: threading.Event) -> None:
        self._thread = threading.Thread(
            target=self._run, args=(arrived,), name="idempotent-stomp-connect", daemon=True
        )
        self._thread.start()

    def cancel(self) -> None:
        self.connection.abort()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self, arrived: threading.Event) -> None:
        try:
            self.connection.open(self._subscriptions)
        except Exception as error:
            self.error = error
            self.connection.abort()
        self.has_ended = True
        arrived.set()
