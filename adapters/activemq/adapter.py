"""StompAdapter: the client of an ActiveMQ Classic broker, over STOMP 1.2."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final, Literal

from idempotent.adapters.activemq.connection import StompConnection, Subscription
from idempotent.adapters.activemq.copying import CopyBackoff
from idempotent.adapters.activemq.epoch import Epoch, Token
from idempotent.adapters.activemq.findings import stomp_findings
from idempotent.adapters.activemq.frames import (
    Frame,
    group_that_reads,
    kept_of,
    ours_in,
    place_of,
    send_frame,
)
from idempotent.adapters.activemq.lines import Line
from idempotent.adapters.activemq.options import (
    AckMode,
    Address,
    StompSettings,
    dead_letters_of,
    destination_of,
)
from idempotent.adapters.activemq.refusals import CommitLostError, CopyLostError, LostError, RefusedError
from idempotent.adapters.answers import Answers
from idempotent.adapters.base import Adapter, Delivery, subjects_of
from idempotent.adapters.copies import (
    KEY_HEADER,
    dead_letter_headers,
    delayed_headers,
    only_for,
    returned_headers,
    without_ours,
)
from idempotent.adapters.reconnecting import RECONNECT
from idempotent.admin import Finding
from idempotent.consumer import AnyConsumer
from idempotent.errors import AdapterError, ConfigurationError
from idempotent.forks import free_in_child
from idempotent.logs import EventLog
from idempotent.message import Message
from idempotent.outcomes import Result
from idempotent.policy import Backoff
from idempotent.validation import check_types, choice

log = EventLog(__name__)

_LOOK_S: Final = 0.1
_TRANSACTION: Final = 500
_NO_HEADERS: Final[Mapping[str, Any]] = {}
# ActiveMQ's words for a frame that is larger than its `maxFrameSize`. It closes the connection then.
_TOO_LARGE: Final = "maxFrameSize"


class StompAdapter(Adapter):
    """Receive from, and publish to, ActiveMQ Classic. Reconnects automatically.

    A subject is the name of a queue, or a destination: `/queue/NAME`, `/topic/NAME`. The message id is the header
    `x-idempotent-key`, or else the id that the broker assigned.

    A failed message is sent again as a copy that the broker's scheduler delays, a dead one as a copy to the
    dead-letter queue. The original is acknowledged when the broker has confirmed the copy; with `ack="transacted"`
    both are one transaction. A copy that the broker refuses, or that costs the connection, is sent again after 1 second
    to 10 minutes, and its original stays unacknowledged meanwhile. NACK is sent only for a JMS message whose body STOMP
    does not carry: the broker keeps it.

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
        self._arrived = free_in_child(threading.Event())
        self._woken = False
        self._line = Line(self._settings, self._arrived, backoff=backoff, fail_fast=fail_fast)
        # What publishes is not read by a broker without room, and must not hold up acknowledgements.
        self._copy_line = Line(
            replace(self._settings, client_id=None, durable_subscription=None),
            self._arrived,
            purpose=" (publishing)",
            backoff=backoff,
            fail_fast=False,
        )
        self._copy_backoff = CopyBackoff()
        self._publishing = Publishing(str(address), self._connected_to_publish, self._lose_publishing)
        self._subscriptions: tuple[Subscription, ...] = ()
        self._groups: Mapping[str, str] = {}
        self._epoch: Epoch | None = None

    def open(self, consumers: Sequence[AnyConsumer]) -> None:
        self.close()
        self._subscriptions = tuple(
            Subscription(str(number), subject, destination_of(subject))
            for number, subject in enumerate(subjects_of(consumers))
        )
        self._groups = {destination_of(each.subject): each.group for each in consumers}
        self._settings.check_destinations([one.destination for one in self._subscriptions])
        self._line.subscriptions = self._subscriptions
        if self._fail_fast:
            self._line.connected(self._upkeep)

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
        group = group_that_reads(origin, self._groups[origin])
        letter = dead_letter_headers(message, ours, place_of(target), origin, result, group=group)
        headers = {**message.headers, **kept_of(token.held.frame), **letter}
        headers.pop("expires", None)  # a dead letter must not expire
        frame = send_frame(target, message.body, headers)
        if delivery.error is not None:
            return self._settle(token, lambda epoch: epoch.refused(token, lambda: frame))
        return self._settle(token, lambda epoch: epoch.replaced(token, lambda: frame))

    def _give_back(self, delivery: Delivery) -> bool:
        token: Token = delivery.token
        if delivery.error is not None:  # a copy would not have its body
            return self._settle(token, lambda epoch: epoch.keep(token, 0.0))
        return self._replace(delivery, 0.0)

    def publish(self, message: Message) -> None:
        self._publishing.publish([message])

    def publish_many(self, messages: Sequence[Message]) -> None:
        self._publishing.publish(messages)

    def put_back(self, letter: Message, group: str) -> None:
        place = destination_of(letter.subject)
        ours = self._ours(letter.raw, self._dead_of(place))
        returned = returned_headers(letter, ours, place_of(place), group_that_reads(place, group))
        self._publishing.publish([letter], {**kept_of(letter.raw), **returned})

    def written_on(self, letter: Delivery) -> Mapping[str, Any]:
        held = letter.token.held
        return self._ours(held.frame, held.subscription.destination)

    def dead_letter_subject(self, subject: str) -> str:
        return self._dead_letter_destination or dead_letters_of(destination_of(subject))

    def _dead_of(self, destination: str) -> str:
        own = self._dead_letter_destination
        return dead_letters_of(destination) if own is None else destination_of(own)

    def _ours(self, frame: Frame, destination: str) -> Mapping[str, Any]:
        return ours_in(dict(frame.headers), destination, self._dead_of)

    def findings(self, subjects: Collection[str], *, horizon_s: float | None = None) -> Iterator[Finding]:
        del horizon_s
        dead = [place_of(self._dead_of(destination_of(subject))) for subject in subjects]
        yield from stomp_findings(self._settings, dict.fromkeys(dead), scheduler=self._scheduler)

    @property
    def connected(self) -> bool:
        return self._line.connection is not None

    @property
    def waits_for(self) -> str | None:
        return self._copy_backoff.untaken.text if self.connected else None

    def wake(self) -> None:
        self._woken = True
        self._arrived.set()

    def close(self) -> None:
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            epoch.close()
        self._line.close()
        self._copy_line.close()

    def _upkeep(self) -> None:
        """Serve the connections, or go on connecting. Returns soon."""
        try:
            self._line.upkeep()
            connection = self._line.connection
            if connection is not None and self._epoch is None:
                self._epoch = Epoch(
                    connection,
                    self._settings,
                    self._subscriptions,
                    self._copy_line,
                    self._copy_backoff,
                    self._dead_of,
                )
            if self._epoch is not None:
                self._epoch.upkeep()
        except LostError as error:
            self._lose(error)

    def _connected_to_publish(self) -> StompConnection:
        """What publishes shares no connection with what acknowledges, but a topic needs its subscription first."""
        connection = self._line.connected(self._upkeep)
        return self._copy_line.connected(self._serve_copy_line) if self._subscriptions else connection

    def _serve_copy_line(self) -> None:
        try:
            self._copy_line.upkeep()
        except LostError as error:
            self._copy_line.lose(error)

    def _lose_publishing(self, error: LostError) -> None:
        if self._subscriptions:
            self._copy_line.lose(error)
        else:
            self._lose(error)

    def _lose(self, error: LostError) -> None:
        """End the epoch: the broker delivers its unsettled messages again."""
        self._epoch = None
        if isinstance(error, CopyLostError):
            self._copy_backoff.failed(error.copies, error)
        self._line.lose(error)

    def _replace(self, delivery: Delivery, delay_s: float) -> bool:
        """Send a copy of the message to where it came from, and acknowledge the original."""
        token, message = delivery.token, delivery.message
        place = token.destination
        ours = delayed_headers(message, self._ours(token.held.frame, place), place_of(place), place)
        only = only_for(group_that_reads(place, self._groups[place]))
        headers = {**message.headers, **kept_of(token.held.frame), **ours, **only}
        due = time.monotonic() + delay_s

        def copy() -> Frame:
            return send_frame(place, message.body, headers, due - time.monotonic())

        return self._settle(token, lambda epoch: epoch.replaced(token, copy, due))

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


class Publishing:
    """Publishes for an adapter.

    Args:
        where: the broker, without credentials.
        connected: returns the connection, or waits for a new one; raises AdapterError when the wait was too long.
        lose: called with the error of a lost connection.
    """

    def __init__(
        self, where: str, connected: Callable[[], StompConnection], lose: Callable[[LostError], None]
    ) -> None:
        self._where = where
        self._connected = connected
        self._lose = lose

    def publish(self, messages: Sequence[Message], ours: Mapping[str, Any] = _NO_HEADERS) -> None:
        """Send messages, and return when the broker has confirmed all of them.

        The broker syncs its disk once per transaction instead of once per message. A transaction that it refuses is
        rolled back, and its messages are sent one by one.

        Args:
            messages: to be sent to their subjects.
            ours: headers of this library that all of them get.

        Raises:
            PublishError: the broker refused some of them, or did not answer.
        """
        answers = Answers(messages)
        frames = answers.made(partial(_frame, ours=ours))
        unsent = frames.copy()
        try:
            while unsent:
                part = dict(islice(unsent.items(), _TRANSACTION))
                is_together = self._together(part, answers)
                for place, frame in part.items():
                    if not is_together:
                        self._alone(place, frame, answers)
                    del unsent[place]
        except AdapterError as error:
            answers.lose(unsent, error)
        answers.check()

    def _together(self, frames: Mapping[int, Frame], answers: Answers) -> bool:
        """Send messages in one transaction. False: none of them was sent."""
        if len(frames) == 1:
            return False
        connection = self._connected()
        try:
            connection.transact(list(frames.values()), f"{len(frames)} messages")
        except RefusedError:
            return False
        except CommitLostError as error:
            self._lose(error)
            answers.lose(frames, self._silent(error))
        except LostError as error:
            self._lose(error)
            return False
        return True

    def _alone(self, place: int, frame: Frame, answers: Answers) -> None:
        connection = self._connected()
        try:
            connection.confirm([frame], f"a message to {frame.headers['destination']}")
        except RefusedError as error:
            answers.refuse(place, error)
        except LostError as error:
            self._lose(error)
            if _TOO_LARGE in str(error):
                answers.refuse(place, error)
            else:
                answers.lose([place], self._silent(error))

    def _silent(self, error: LostError) -> str:
        return f"{self._where} did not confirm a message: {error}"


def _frame(message: Message, ours: Mapping[str, Any] = _NO_HEADERS) -> Frame:
    headers = {**without_ours(message.headers), **ours}
    if message.id is not None:
        headers[KEY_HEADER] = message.id
    try:
        destination = destination_of(message.subject)
    except ConfigurationError as error:
        raise AdapterError(f"cannot publish: {error}") from None
    return send_frame(destination, message.body, headers)
