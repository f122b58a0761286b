"""StompAdapter: the client of an ActiveMQ Classic broker, over STOMP 1.2."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from idempotent.adapters.activemq.connection import StompConnection, Subscription
from idempotent.adapters.activemq.copy_backoff import CopyBackoff
from idempotent.adapters.activemq.destinations import dead_letters_of, destination_of
from idempotent.adapters.activemq.epoch import Epoch, Token
from idempotent.adapters.activemq.frames import Frame, ours_in, place_of, send_frame, type_of
from idempotent.adapters.activemq.options import AckMode, Address, StompSettings
from idempotent.adapters.activemq.publishing import Publishing
from idempotent.adapters.activemq.refusals import CopyLostError, LostError, RefusedError, UntrustedError
from idempotent.adapters.base import Adapter, Delivery, subjects_of
from idempotent.adapters.copies import (
    ORIGIN_HEADER,
    dead_letter_headers,
    delayed_headers,
    returned_headers,
    text_of,
)
from idempotent.adapters.reconnecting import RECONNECT, Reconnecting
from idempotent.consumer import AnyConsumer
from idempotent.errors import AdapterError
from idempotent.message import Message
from idempotent.outcomes import Result
from idempotent.policy import Backoff
from idempotent.validation import check_types, choice

_LOOK_S: Final = 0.1
# A connection this short was probably ended by one of its own messages: back off.
_SHORT_LIFE_S: Final = 1.0


class StompAdapter(Adapter):
    """Receive from, and publish to, ActiveMQ Classic. Reconnects automatically.

    A subject is the name of a queue, or a destination: `/queue/NAME`, `/topic/NAME`. The message id is the header
    `x-idempotent-key`, or else the id that the broker assigned.

    A failed message is sent again as a copy that the broker's scheduler delays, a dead one as a copy to the
    dead-letter queue. The original is acknowledged when the broker has confirmed the copy; with `ack="transacted"`
    both are one transaction. NACK is sent only for a JMS message whose body STOMP does not carry: the broker keeps it.

    Args:
        url: `stomp://user:password@host:61613`, or `stomp+ssl://`.
        ack: when messages are acknowledged; one of `AckMode` or its value.
        prefetch: messages of one subject that the broker sends ahead of their acknowledgement.
        optimize_acknowledge: with `ack="auto"`: acknowledge in groups of 65 % of the prefetch.
        optimize_ack_timeout_s: the longest that a group waits to fill, in seconds.
        client_id: a name that no other connection uses at the same time; for durable subscriptions.
        durable_subscription: the broker keeps the messages of a topic under this name while no consumer is connected.
        heartbeat_s: both sides send at least that often; after twice that in silence the connection is lost.
        receipts: wait for the broker's receipt of every acknowledgement, not only of copies.
        receipt_timeout_s: seconds without an answer after which the connection counts as lost.
        connect_timeout_s: the longest that one attempt to connect may take, in seconds.
        dead_letter_destination: for all subjects; default: the queue with the subject's name and `.dead`.
        scheduler: whether the broker has one (`schedulerSupport`); None: find out. Without a scheduler, failed
            messages wait in this process, unacknowledged.
        fail_fast: raise in `open` when the broker cannot be reached.
        accept_empty: deliver a message without a body, which may be a JMS MapMessage, ObjectMessage or StreamMessage
            whose body STOMP does not carry. Off: it is rejected.
        ca_file: trusted certificates in place of the system's.
        backoff: between attempts to connect.

    Raises:
        ConfigurationError: the URL is invalid, or an option cannot work. In `open`: a subject is not one destination.
        MissingExtraError: stomp.py is not installed.
    """

    token_type = Token

    def __init__(
        self,
        url: str,
        *,
        ack: AckMode | Literal["auto", "client", "individual", "dups_ok", "transacted"] = AckMode.INDIVIDUAL,
        prefetch: int = 100,
        optimize_acknowledge: bool = False,
        optimize_ack_timeout_s: float = 0.3,
        client_id: str | None = None,
        durable_subscription: str | None = None,
        heartbeat_s: float = 10.0,
        receipts: bool = False,
        receipt_timeout_s: float = 10.0,
        connect_timeout_s: float = 10.0,
        dead_letter_destination: str | None = None,
        scheduler: bool | None = None,
        fail_fast: bool = False,
        accept_empty: bool = False,
        ca_file: str | None = None,
        backoff: Backoff = RECONNECT,
    ) -> None:
        """Connect in `open`."""
        check_types(StompAdapter, locals())
        address = Address.from_url(url, ca_file)
        self._settings = StompSettings(
            address=address,
            ack=choice(AckMode, ack, "ack"),
            prefetch=prefetch,
            optimize_acknowledge=optimize_acknowledge,
            optimize_ack_timeout_s=optimize_ack_timeout_s,
            client_id=client_id,
            durable_subscription=durable_subscription,
            heartbeat_s=heartbeat_s,
            receipts=receipts,
            receipt_timeout_s=receipt_timeout_s,
            connect_timeout_s=connect_timeout_s,
            accept_empty=accept_empty,
        )
        if dead_letter_destination is not None:
            destination_of(dead_letter_destination)
        self._dead_letter_destination = dead_letter_destination
        self._scheduler = scheduler
        self._fail_fast = fail_fast
        self._arrived = threading.Event()
        self._woken = False
        self._reconnecting = Reconnecting(str(address), backoff=backoff, fail_fast=fail_fast)
        self._connecting = Connecting(self._settings, self._reconnecting, self._arrived)
        self._copy_backoff = CopyBackoff()
        self._publishing = Publishing(str(address), lambda: self._connected().connection, self._lose)
        self._subscriptions: tuple[Subscription, ...] = ()
        self._epoch: Epoch | None = None

    def open(self, consumers: Sequence[AnyConsumer]) -> None:
        self.close()
        self._subscriptions = tuple(
            Subscription(str(number), subject, destination_of(subject))
            for number, subject in enumerate(subjects_of(consumers))
        )
        self._settings.check_destinations([one.destination for one in self._subscriptions])
        if self._fail_fast:
            self._connected()

    def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
        until = time.monotonic() + timeout_s
        while True:
            self._arrived.clear()
            self._upkeep()
            found = self._epoch.take(limit, self.full_subjects) if self._epoch else []
            left_s = until - time.monotonic()
            if found or self._woken or left_s <= 0:
                self._woken = False
                return found
            self._arrived.wait(min(left_s, _LOOK_S))

    def _acknowledge(self, delivery: Delivery, result: Result) -> bool:
        del result
        token: Token = delivery.token
        return self._settle(token, lambda epoch: epoch.done(token))

    def _delay(self, delivery: Delivery, after_s: float) -> bool:
        if self._epoch and self._epoch.missed_scheduler:
            self._scheduler = False
        if self._scheduler is not False or after_s <= 0:
            return self._replace(delivery, after_s)
        token: Token = delivery.token
        return self._settle(token, lambda epoch: epoch.keep(token, after_s))

    def _dead_letter(self, delivery: Delivery, result: Result) -> bool:
        token, message = delivery.token, delivery.message
        origin = token.destination
        target = self._dead_of(origin)
        ours = self._ours(token.held.frame, origin)
        letter = dead_letter_headers(message, ours, place_of(target), origin, result)
        headers = {**message.headers, **type_of(token.held.frame), **letter}
        headers.pop("expires", None)  # a dead letter must not expire
        frame = send_frame(target, message.body, headers)
        if delivery.error is not None:
            return self._copy(token, lambda epoch: epoch.refused(token, lambda: frame))
        return self._copy(token, lambda epoch: epoch.replaced(token, lambda: frame))

    def _give_back(self, delivery: Delivery) -> bool:
        token: Token = delivery.token
        if delivery.error is not None:  # a copy would not have its body
            return self._settle(token, lambda epoch: epoch.keep(token, 0.0))
        return self._replace(delivery, 0.0)

    def publish(self, message: Message) -> None:
        self._publishing.publish([message])

    def publish_many(self, messages: Sequence[Message]) -> None:
        self._publishing.publish(messages)

    def put_back(self, letter: Message) -> None:
        place = destination_of(letter.subject)
        ours = self._ours(letter.raw, self._dead_of(place))
        returned = returned_headers(letter, ours, place_of(place))
        self._publishing.publish([letter], {**type_of(letter.raw), **returned})

    def origin_of(self, letter: Delivery) -> str | None:
        held = letter.token.held
        return text_of(self._ours(held.frame, held.subscription.destination).get(ORIGIN_HEADER))

    def dead_letter_subject(self, subject: str) -> str:
        return self._dead_letter_destination or dead_letters_of(destination_of(subject))

    def _dead_of(self, destination: str) -> str:
        own = self._dead_letter_destination
        return dead_letters_of(destination) if own is None else destination_of(own)

    def _ours(self, frame: Frame, destination: str) -> Mapping[str, Any]:
        return ours_in(dict(frame.headers), destination, self._dead_of)

    @property
    def connected(self) -> bool:
        return self._epoch is not None

    def wake(self) -> None:
        self._woken = True
        self._arrived.set()

    def close(self) -> None:
        self._connecting.cancel()
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            epoch.close()

    def _upkeep(self) -> None:
        """Serve the connection, or go on connecting. Returns soon."""
        if self._epoch is not None:
            try:
                self._epoch.upkeep()
            except LostError as error:
                self._lose(error)
        if self._epoch is None:
            connection = self._connecting.poll(self._subscriptions)
            if connection is not None:
                self._epoch = Epoch(connection, self._settings, self._subscriptions, self._dead_of)

    def _connected(self) -> Epoch:
        """Wait for a connection, at most as long as an attempt may take."""
        until = time.monotonic() + self._settings.connect_timeout_s
        self._upkeep()
        while self._epoch is None:
            if time.monotonic() > until:
                raise AdapterError(f"cannot connect to {self._settings.address}")
            self._arrived.wait(_LOOK_S)
            self._arrived.clear()
            self._upkeep()
        return self._epoch

    def _lose(self, error: LostError) -> None:
        """End the epoch: the broker delivers its unsettled messages again."""
        epoch, self._epoch = self._epoch, None
        if isinstance(error, CopyLostError):
            self._copy_backoff.lost_over(error.positions)
        if epoch is not None:
            epoch.connection.abort()
            self._reconnecting.lost(error)
            if epoch.age_s < _SHORT_LIFE_S:
                self._reconnecting.failed(error)

    def _replace(self, delivery: Delivery, delay_s: float) -> bool:
        """Send a copy of the message to where it came from, and acknowledge the original."""
        token, message = delivery.token, delivery.message
        place = token.destination
        ours = delayed_headers(message, self._ours(token.held.frame, place), place_of(place), place)
        headers = {**message.headers, **type_of(token.held.frame), **ours}
        due = time.monotonic() + delay_s

        def copy() -> Frame:
            return send_frame(place, message.body, headers, due - time.monotonic())

        return self._copy(token, lambda epoch: epoch.replaced(token, copy), delay_s)

    def _copy(self, token: Token, act: Callable[[Epoch], object], at_least_s: float = 0.0) -> bool:
        position = token.held.position
        wait_s = self._copy_backoff.wait_s(position)
        if wait_s > 0:
            # The message waits here, unacknowledged, and is handed to the worker again.
            return self._settle(token, lambda epoch: epoch.keep(token, max(wait_s, at_least_s)))
        is_copied = self._settle(token, act)
        if is_copied:
            self._copy_backoff.copied(position)
        return is_copied

    def _settle(self, token: Token, act: Callable[[Epoch], object]) -> bool:
        """Settle a delivery once. False: it is stale, or the connection was lost and its message may come again."""
        if self._epoch is None or not self._epoch.holds(token):
            return False
        try:
            act(self._epoch)
        except LostError as error:
            self._lose(error)
            return False
        return True


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
