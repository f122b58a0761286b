"""Publisher: messages that the broker has confirmed, or an error that says why not."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from idempotent.adapters.rabbitmq.client import pika_errors
from idempotent.adapters.rabbitmq.topology import ASK_AGAIN_S, Topology
from idempotent.errors import AdapterError

_TRANSACTION: Final = 500
# The broker's and pika's frame_max, less the frame's own bytes. A longer header ends the whole connection.
_MOST_HEADER_BYTES: Final = 131_072 - 64
# RabbitMQ's words for a body that is larger than its `max_message_size`.
_MAX_MESSAGE_SIZE: Final = "max size"
_UNENCODABLE: Final = (
    *(pika_errors.ProtocolSyntaxError, pika_errors.ShortStringTooLong),
    *(struct.error, ValueError, TypeError, AssertionError),
)


class NotTakenError(AdapterError):
    """The broker did not take the message."""


class TooLargeError(NotTakenError):
    """The broker will never take the message, because of its size."""


class Publisher:
    """A channel of its own, with confirms: the consuming one never waits for them, and survives a refusal.

    Args:
        connection: whose channel it opens.
        topology: makes a queue that turns out to be missing, where it may.
    """

    def __init__(self, connection: Any, topology: Topology) -> None:
        """Open the channel when it is first needed."""
        self._connection = connection
        self._topology = topology
        self._channel: Any = None
        self._asked: dict[str, float] = {}

    def to_queue(self, queue: str, body: bytes, properties: Any) -> None:
        """Send to a queue that somebody consumes.

        Raises:
            NotTakenError: the broker has not taken it.
            AMQPError, OSError: the connection is lost; perhaps it has.
        """
        self._send(queue, body, properties, lambda: self._topology.ensure_plain(self._connection, queue))

    def all_to_queues(self, items: Sequence[tuple[str, bytes, Any]]) -> None:
        """Send bodies and properties to queues, many in one transaction: pika waits for each confirm, alone.

        Raises:
            NotTakenError: the broker has not taken one of them.
            AMQPError, OSError: the connection is lost; perhaps it has taken all.
        """
        returned: list[tuple[str, bytes, Any]] = []
        with self._connection.channel() as channel:
            channel.add_on_return_callback(
                lambda _, method, properties, body: returned.append((method.routing_key, body, properties))
            )
            channel.tx_select()
            try:
                for number, (queue, body, properties) in enumerate(items, 1):
                    _publish(channel, queue, body, properties)
                    if number % _TRANSACTION == 0 or number == len(items):
                        channel.tx_commit()
            except pika_errors.ChannelClosedByBroker as error:
                raise NotTakenError(f"the broker refuses a message: {error.reply_text}") from error
            # What came back did so before its commit was answered, and is told now.
            self._connection.process_data_events(0)
        for queue, body, properties in returned:
            self.to_queue(queue, body, properties)

    def to_dead_letters(self, queue: str, body: bytes, properties: Any) -> None:
        """Send to the dead-letter queue of `queue`. Raises as `to_queue`."""
        dead = self._topology.dead(queue)
        self._send(dead, body, properties, lambda: self._topology.ensure_dead(self._connection, queue))

    def to_delay(self, queue: str, delay_s: float, body: bytes, properties: Any) -> None:
        """Let it come to `queue` after at least `delay_s`. Raises as `to_queue`."""
        name, _ = self._topology.delay(queue, delay_s)

        def ensure() -> None:
            self._topology.ensure_delay(self._connection, queue, delay_s)
            self._asked[name] = time.monotonic()

        # Asking keeps the queue alive for as long as its messages need.
        if time.monotonic() - self._asked.get(name, -ASK_AGAIN_S) >= ASK_AGAIN_S:
            self._or_not_taken(name, ensure)
        self._send(name, body, properties, ensure)

    def _send(self, queue: str, body: bytes, properties: Any, ensure: Callable[[], None]) -> None:
        try:
            self._publish(queue, body, properties)
        except pika_errors.UnroutableError:
            self._or_not_taken(queue, ensure)
            try:
                self._publish(queue, body, properties)
            except pika_errors.UnroutableError as error:
                raise NotTakenError(f"there is no queue {queue!r}") from error

    def _publish(self, queue: str, body: bytes, properties: Any) -> None:
        if self._channel is None or not self._channel.is_open:
            self._channel = self._connection.channel()
            self._channel.confirm_delivery()
        try:
            _publish(self._channel, queue, body, properties)
        except pika_errors.NackError as error:
            raise NotTakenError(f"queue {queue!r} refuses it; is it full, or without a majority?") from error
        except pika_errors.ChannelClosedByBroker as error:
            kind = TooLargeError if _MAX_MESSAGE_SIZE in error.reply_text else NotTakenError
            raise kind(f"the broker refuses it for queue {queue!r}: {error.reply_text}") from error

    @staticmethod
    def takes(properties: Any) -> bool:
        """Whether headers are small enough.

        Raises:
            NotTakenError: they are nothing that AMQP can carry.
        """
        return _size_of(properties) <= _MOST_HEADER_BYTES

    @staticmethod
    def _or_not_taken(queue: str, ensure: Callable[[], None]) -> None:
        try:
            ensure()
        except pika_errors.ChannelClosedByBroker as error:
            raise NotTakenError(f"queue {queue!r} cannot be made: {error.reply_text}") from error


def _publish(channel: Any, queue: str, body: bytes, properties: Any) -> None:
    size = _size_of(properties)
    if size > _MOST_HEADER_BYTES:
        raise TooLargeError(f"the headers have {size} bytes; {_MOST_HEADER_BYTES} is the most")
    try:
        channel.basic_publish("", queue, body, properties, mandatory=True)
    except (struct.error, pika_errors.ShortStringTooLong) as error:
        raise NotTakenError(f"there can be no queue {queue!r}") from error


def _size_of(properties: Any) -> int:
    try:
        return sum(map(len, properties.encode()))
    except _UNENCODABLE as error:
        raise NotTakenError(f"the headers cannot be sent: {error!r}") from error
