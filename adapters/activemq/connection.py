"""StompConnection: one connection to ActiveMQ, which is one epoch."""

from __future__ import annotations

import itertools
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from idempotent.adapters.activemq import client as stomp
from idempotent.adapters.activemq.frames import Frame, escaped_names
from idempotent.adapters.activemq.options import StompSettings
from idempotent.adapters.activemq.refusals import (
    CommitLostError,
    LostError,
    RefusedError,
    SilentError,
    UntrustedError,
    refusal,
)
from idempotent.adapters.activemq.transport import Transport
from idempotent.adapters.reconnecting import describe
from idempotent.errors import AdapterError
from idempotent.logs import EventLog

log = EventLog(__name__)

_LOOK_S: Final = 0.05
_GOODBYE_S: Final = 2.0
_VERSION: Final = "1.2"
# Beats are sent more often than agreed, because ActiveMQ tolerates no delay by default.
_BEATS_PER_INTERVAL: Final = 3
# A connection is lost after this many silent intervals.
_SILENT_INTERVALS: Final = 2


@dataclass(frozen=True, slots=True)
class Subscription:
    """One subscription.

    Attributes:
        id: unique on its connection; it changes when the subscription is renewed.
        subject: the consumer's name for the destination.
        destination: ActiveMQ's name.
    """

    id: str = field(compare=False)
    subject: str
    destination: str


class StompConnection:
    """Sends frames and receives answers, for one thread at a time.

    Every method that talks to the broker raises LostError when the connection is lost.

    Args:
        settings: of the broker and the subscriptions.
        arrived: set when a frame may have arrived.
    """

    def __init__(self, settings: StompSettings, arrived: threading.Event) -> None:
        """Connect in `open`."""
        self._settings = settings
        self._arrived = arrived
        at = settings.address
        self._transport = Transport(at.host, at.port, at.ssl, settings.connect_timeout_s)
        # stomp.py's own heartbeats are off: their thread waits for locks that a lost connection holds.
        self._protocol = stomp.Protocol12(self._transport, heartbeats=(0, 0))
        self._inbox = Inbox(arrived)
        self._transport.set_listener("inbox", self._inbox)
        self._numbers = itertools.count(1)
        self._beats = Heartbeats(beat_after_s=None, silence_s=None)
        self._sent_at = time.monotonic()
        self._aborted = False
        self.server = ""
        """What the broker calls itself, once it has greeted."""

    def open(self, subscriptions: Sequence[Subscription]) -> None:
        """Connect and subscribe.

        Raises:
            ForbiddenError: wrong credentials or a missing permission; the next attempt would fail too.
            RefusedError: the broker refused for another reason.
            UntrustedError: its certificate is not trusted.
            AdapterError: the server is not ActiveMQ Classic.
        """
        until = time.monotonic() + self._settings.connect_timeout_s
        try:
            self._transport.start()
        except ssl.SSLCertVerificationError as error:
            raise UntrustedError(
                f"cannot connect to {self._settings.address}: the broker's certificate is not trusted: check ca_file "
                f"and the host name in the URL ({describe(error)})"
            ) from error
        except OSError as error:
            raise LostError(describe(error)) from error
        if self._aborted:
            self.abort()
            raise LostError("the attempt was cancelled")
        self._guard(self._greet)
        greeting = self._await_greeting(until)
        check_server(greeting, str(self._settings.address))
        self.server = greeting.headers.get("server", "")
        self._beats = heartbeats(greeting, self._settings.heartbeat_s)
        self.confirm([self._subscribe_frame(subscription) for subscription in subscriptions], "SUBSCRIBE")

    def disconnect(self) -> None:
        """Send DISCONNECT and wait for its receipt, so that the broker has processed all earlier frames; then close."""
        try:
            self.confirm([Frame("DISCONNECT", {})], "DISCONNECT", timeout_s=_GOODBYE_S)
        except (LostError, RefusedError) as error:
            log.debug("broker_goodbye_failed", extra={"error": describe(error)})
        self.abort()

    def abort(self) -> None:
        """Close the connection now. Any thread may call this at any time."""
        self._aborted = True
        self._transport.disconnect_socket()
        thread = self._transport.io_thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_GOODBYE_S)
            self._transport.close()

    @property
    def is_open(self) -> bool:
        """Whether the connection is not known to be lost."""
        return not self._inbox.is_closed and not self._aborted

    def next_message(self) -> Frame | None:
        """The next MESSAGE frame, without waiting; None if no frame arrived or the connection is lost."""
        if not self.is_open:
            return None
        try:
            return self._inbox.messages.popleft()
        except IndexError:
            return None

    def upkeep(self) -> None:
        """Send a due heartbeat, and check that the broker is alive."""
        if not self.is_open:
            raise LostError(self._reason())
        while self._inbox.errors:
            # For example a late acknowledgement: the broker delivers that message again.
            log.warning(
                "broker_error", extra={"error": str(refusal(self._inbox.errors.popleft(), "a frame"))}
            )
        now = time.monotonic()
        if self._beats.silence_s is not None and now - self._transport.received_at > self._beats.silence_s:
            self.abort()
            raise LostError(f"nothing heard for {self._beats.silence_s:g} s")
        if self._beats.beat_after_s is not None and now - self._sent_at > self._beats.beat_after_s:
            self._guard(lambda: self._transport.transmit(stomp.Frame(None, {}, None)))

    def send(self, frame: Frame) -> None:
        """Send a frame without waiting for an answer."""
        headers = escaped_names(frame.headers)
        self._guard(lambda: self._protocol.send_frame(frame.command, headers, frame.body))

    def confirm(self, frames: Sequence[Frame], what: str, timeout_s: float | None = None) -> None:
        """Send frames and wait until the broker has processed all of them.

        Raises:
            RefusedError: the broker refused one.
        """
        receipts = [self.ask(frame) for frame in frames]
        until = time.monotonic() + (timeout_s or self._settings.receipt_timeout_s)
        for answer in [self._answer(receipt, until, what) for receipt in receipts]:
            if answer.command == "ERROR":
                raise refusal(answer, what)

    def ask(self, frame: Frame) -> str:
        """Send a frame, and return the name of the receipt by which `answer` finds the broker's answer."""
        receipt = f"r{next(self._numbers)}"
        self.send(replace(frame, headers={**frame.headers, "receipt": receipt}))
        return receipt

    def answer(self, receipt: str) -> Frame | None:
        """The RECEIPT or ERROR frame that answers a frame, once; None: it has not arrived."""
        return self._inbox.answers.pop(receipt, None)

    def renew(self, old: Subscription, new: Subscription) -> None:
        """Replace a subscription of which nothing is unacknowledged.

        Raises:
            LostError: the broker does not know it any more, or refuses another.
        """
        try:
            self.confirm([Frame("UNSUBSCRIBE", {"id": old.id})], "UNSUBSCRIBE")
            self.confirm([self._subscribe_frame(new)], "SUBSCRIBE")
        except RefusedError as error:
            raise LostError(f"the broker has removed the consumer of {old.destination}: {error}") from error

    def transact(self, steps: Sequence[Frame], what: str) -> None:
        """Process all of these SENDs and ACKs in one transaction, or none.

        The broker does not report a refused SEND without a receipt, and would commit the rest. So every frame is
        confirmed before the COMMIT.

        Raises:
            RefusedError: the transaction was rolled back; its messages stay unacknowledged.
            CommitLostError: the broker may have processed it. After any other LostError it rolls it back.
        """
        name = {"transaction": f"t{next(self._numbers)}"}
        self.send(Frame("BEGIN", name))
        try:
            self.confirm([replace(step, headers={**step.headers, **name}) for step in steps], what)
            self._commit(name, what)
        except RefusedError:
            self.confirm([Frame("ABORT", name)], f"the ABORT of {what}")
            raise

    # Private

    def _commit(self, name: Mapping[str, str], what: str) -> None:
        try:
            self.confirm([Frame("COMMIT", name)], what)
        except LostError as error:
            raise CommitLostError(str(error)) from error

    def _greet(self) -> None:
        interval_ms = str(round(self._settings.heartbeat_s * 1000))
        headers = {"heart-beat": f"{interval_ms},{interval_ms}"}
        if self._settings.client_id is not None:
            headers["client-id"] = self._settings.client_id
        address = self._settings.address
        self._protocol.connect(address.login, address.passcode, headers=headers)

    def _await_greeting(self, until: float) -> Frame:
        while self._inbox.connected is None:
            if self._inbox.errors:
                raise refusal(self._inbox.errors.popleft(), f"the connection to {self._settings.address}")
            if not self.is_open:
                raise LostError(self._reason())
            if time.monotonic() > until:
                raise LostError("no answer to CONNECT")
            self._wait()
        return self._inbox.connected

    def _subscribe_frame(self, subscription: Subscription) -> Frame:
        settings = self._settings
        headers = {
            "id": subscription.id,
            "destination": subscription.destination,
            "ack": "client" if settings.is_cumulative else "client-individual",
            "activemq.prefetchSize": str(settings.prefetch),
        }
        if settings.durable_subscription is not None:
            headers["activemq.subscriptionName"] = settings.durable_subscription
        return Frame("SUBSCRIBE", headers)

    def _answer(self, receipt: str, until: float, what: str) -> Frame:
        while (answer := self.answer(receipt)) is None:
            self.upkeep()
            if time.monotonic() > until:
                # The outcome is unknown, so this connection must not be used again.
                self.abort()
                raise SilentError(f"no answer to {what}")
            self._wait()
        return answer

    def _wait(self) -> None:
        self._arrived.wait(_LOOK_S)
        self._arrived.clear()

    def _guard(self, transmit: Callable[[], object]) -> None:
        """Call a function that writes to the socket, and translate its errors."""
        try:
            transmit()
        # The last two: stomp.py's reader thread removes the socket and the queue when it cleans up.
        except (OSError, stomp.StompException, AttributeError, ValueError) as error:
            self.abort()
            raise LostError(describe(error)) from error
        self._sent_at = time.monotonic()

    def _reason(self) -> str:
        """Why the connection was lost."""
        if self._inbox.errors:
            return str(refusal(self._inbox.errors[-1], "to go on"))
        return "the connection was closed"


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """The agreed heartbeats.

    Attributes:
        beat_after_s: seconds without a sent frame after which a heartbeat is due; None: never.
        silence_s: seconds without a received byte after which the connection is lost; None: never.
    """

    beat_after_s: float | None
    silence_s: float | None


def heartbeats(greeting: Frame, asked_s: float) -> Heartbeats:
    """The heartbeats that the broker agreed to; `asked_s` was the requested interval."""
    sends_ms, wants_ms = (int(word) for word in greeting.headers.get("heart-beat", "0,0").split(","))
    return Heartbeats(
        beat_after_s=asked_s / _BEATS_PER_INTERVAL if wants_ms else None,
        silence_s=_SILENT_INTERVALS * max(asked_s, sends_ms / 1000) if sends_ms else None,
    )


def check_server(greeting: Frame, where: str) -> None:
    """Check that the server is a supported one.

    Raises:
        AdapterError: it is Artemis, or does not speak STOMP 1.2.
    """
    server = greeting.headers.get("server", "")
    if "artemis" in server.lower():
        raise AdapterError(
            f"{where} is {server}. This adapter supports ActiveMQ Classic only: Artemis changes message ids at every "
            "connection, and applies acknowledgements before their transaction commits"
        )
    if greeting.headers.get("version") != _VERSION:
        raise AdapterError(f"{where} does not speak STOMP {_VERSION}")


class Inbox:
    """A stomp.py listener that only stores frames: a slow or raising listener costs the connection.

    The reader thread writes and the owner reads. Each operation is atomic, so no lock is needed.

    Args:
        arrived: set with every frame.
    """

    def __init__(self, arrived: threading.Event) -> None:
        self._arrived = arrived
        self.messages: deque[Frame] = deque()
        """MESSAGE frames in the order of their arrival. The broker limits their number to the prefetch."""
        self.answers: dict[str, Frame] = {}
        """RECEIPT and ERROR frames by the receipt they answer."""
        self.errors: deque[Frame] = deque()
        """ERROR frames without a receipt."""
        self.connected: Frame | None = None
        """The CONNECTED frame."""
        self.is_closed = False
        """Whether the connection is lost."""

    def on_connected(self, frame: Any) -> None:
        """Store the CONNECTED frame."""
        self.connected = _copied(frame)
        self._arrived.set()

    def on_message(self, frame: Any) -> None:
        """Store a MESSAGE frame."""
        self.messages.append(_copied(frame))
        self._arrived.set()

    def on_receipt(self, frame: Any) -> None:
        """Store a RECEIPT frame."""
        self._answered(frame)

    def on_error(self, frame: Any) -> None:
        """Store an ERROR frame."""
        self._answered(frame)

    def on_disconnected(self) -> None:
        """Note the end of the connection."""
        self.is_closed = True
        self._arrived.set()

    def _answered(self, frame: Any) -> None:
        copied = _copied(frame)
        receipt = copied.headers.get("receipt-id")
        if receipt is None:
            self.errors.append(copied)
        else:
            self.answers[receipt] = copied
        self._arrived.set()


def _copied(frame: Any) -> Frame:
    return Frame(frame.cmd, dict(frame.headers), frame.body or b"")
