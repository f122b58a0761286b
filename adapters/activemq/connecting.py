"""Connecting: attempts to connect in a thread, so that a broker that does not answer blocks no caller."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from idempotent.adapters.activemq.connection import StompConnection, Subscription
from idempotent.adapters.activemq.options import StompSettings
from idempotent.adapters.activemq.refusals import LostError, RefusedError, UntrustedError
from idempotent.adapters.reconnecting import Reconnecting


class Connecting:
    """One attempt after the other, each with a new connection, when `Reconnecting` says that one is due.

    Args:
        settings: of the broker and the subscriptions.
        reconnecting: when the next attempt is due.
        arrived: set when an attempt has ended.
    """

    def __init__(self, settings: StompSettings, reconnecting: Reconnecting, arrived: threading.Event) -> None:
        self._settings = settings
        self._reconnecting = reconnecting
        self._arrived = arrived
        self._attempt: _Attempt | None = None

    def poll(self, subscriptions: Sequence[Subscription]) -> StompConnection | None:
        """Return a new connection; None while an attempt is in progress or none is due. Starts a due attempt.

        Raises:
            AdapterError: the next attempt would fail in the same way.
        """
        if self._attempt is None:
            if self._reconnecting.wait_s == 0:
                self._attempt = _Attempt(StompConnection(self._settings, self._arrived), subscriptions)
                self._attempt.start(self._arrived)
            return None
        if not self._attempt.has_ended:
            return None
        attempt, self._attempt = self._attempt, None
        if attempt.error is None:
            self._reconnecting.succeeded()
            return attempt.connection
        if isinstance(attempt.error, LostError) or type(attempt.error) is RefusedError:
            self._reconnecting.failed(attempt.error)
            return None
        if isinstance(attempt.error, UntrustedError) and self._reconnecting.was_connected:
            # A certificate that is being replaced; a worker that ran goes on when it is.
            self._reconnecting.failed(attempt.error)
            return None
        raise attempt.error

    def cancel(self) -> None:
        """Abort the attempt in progress."""
        if self._attempt is not None:
            self._attempt.cancel()
            self._attempt = None


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
