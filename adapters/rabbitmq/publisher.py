"""Publisher: sends messages and waits until the broker confirms them."""

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
    """The broker refused the message."""


class TooLargeError(NotTakenError):
    """The broker refused the message because of its size, and always will."""


class Publisher:
    """Has a channel of its own with confirms: the consuming channel neither waits for them nor dies of a refusal.

    Args:
        connection: opens the channel.
        topology: creates missing queues if it may.
    """

    def __init__(self, connection: Any, topology: Topology) -> None:
        self._connection = connection
        self._topology = topology
        self._channel: Any = None
        self._asked: dict[str, float] = {}

    def to_queue(self, queue: str, body: bytes, properties: Any) -> None:
        """Send to a work queue.

        Raises:
            NotTakenError: the broker refused the message.
            AMQPError, OSError: the connection is lost; the broker may have the message.
        """
        self._send(queue, body, properties, lambda: self._topology.ensure_plain(self._connection, queue))

    def all_to_queues(self, items: Sequence[tuple[str, bytes, Any]]) -> None:
        """Send bodies and properties to queues, many per transaction: with confirms pika would wait for each alone.

        Raises:
            NotTakenError: the broker refused one of them.
            AMQPError, OSError: the connection is lost; the broker may have all of them.
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
            # Unroutable messages were returned before the commit was answered; this runs their callbacks.
            self._connection.process_data_events(0)
        for queue, body, properties in returned:
            self.to_queue(queue, body, properties)

    def to_dead_letters(self, queue: str, body: bytes, properties: Any) -> None:
        """Send to the dead-letter queue of `queue`. Raises as `to_queue`."""
        dead = self._topology.dead(queue)
        self._send(dead, body, properties, lambda: self._topology.ensure_dead(self._connection, queue))

    def to_delay(self, queue: str, delay_s: float, body: bytes, properties: Any) -> None:
        """Have a message delivered to `queue` after at least `delay_s` seconds. Raises as `to_queue`."""
        name, _ = self._topology.delay(queue, delay_s)

        def ensure() -> None:
            self._topology.ensure_delay(self._connection, queue, delay_s)
            self._asked[name] = time.monotonic()

        # A passive declaration keeps the queue from expiring.
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
                raise NotTakenError(f"queue {queue!r} does not exist") from error

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
            NotTakenError: AMQP cannot encode them.
        """
        return _size_of(properties) <= _MOST_HEADER_BYTES

    @staticmethod
    def _or_not_taken(queue: str, ensure: Callable[[], None]) -> None:
        try:
            ensure()
        except pika_errors.ChannelClosedByBroker as error:
            raise NotTakenError(f"queue {queue!r} cannot be created: {error.reply_text}") from error


def _publish(channel: Any, queue: str, body: bytes, properties: Any) -> None:
    size = _size_of(properties)
    if size > _MOST_HEADER_BYTES:
        raise TooLargeError(f"the headers have {size} bytes; {_MOST_HEADER_BYTES} is the most")
    try:
        channel.basic_publish("", queue, body, properties, mandatory=True)
    except (struct.error, pika_errors.ShortStringTooLong) as error:
        raise NotTakenError(f"no queue can be named {queue!r}") from error


def _size_of(properties: Any) -> int:
    try:
        return sum(map(len, properties.encode()))
    except _UNENCODABLE as error:
        raise NotTakenError(f"the headers cannot be sent: {error!r}") from error
