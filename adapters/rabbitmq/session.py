"""Session: one connection and its deliveries, whose epoch it is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from idempotent.adapters.base import Delivery
from idempotent.adapters.rabbitmq.acks import Acks, Batched, EachAtOnce
from idempotent.adapters.rabbitmq.client import LOST, pika_errors
from idempotent.adapters.rabbitmq.messages import Received, message_from
from idempotent.adapters.rabbitmq.options import AckMode, Consuming
from idempotent.adapters.rabbitmq.publisher import Publisher
from idempotent.adapters.rabbitmq.topology import Topology

# How often the connection is served while deliveries are available.
_PUMP_EVERY_S: Final = 0.05
_PULL_EVERY_S: Final = 0.1
# After this long without a message, the broker is asked whether the consumers still exist.
_DOUBT_AFTER_S: Final = 60.0


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """A delivery's handle. A tag is valid only in its session."""

    session: Session
    queue: str
    tag: int


class Session:
    """A connection with a channel that consumes and one that publishes.

    The session ends with its connection, when a channel is closed, or when the broker cancels a consumer. The broker
    delivers its unsettled messages again in the next session.

    Args:
        connection: open; the session owns and closes it.
        topology: creates missing queues.
        queues: the queues to consume.
        consuming: how to consume.

    Raises:
        AMQPError, OSError: the broker refused, or the connection was lost.
    """

    def __init__(
        self, connection: Any, topology: Topology, queues: Sequence[str], consuming: Consuming
    ) -> None:
        self._connection = connection
        self._consuming = consuming
        self._queues = deque(queues)
        self._inbox: deque[tuple[str, Received, bytes]] = deque()
        self._unsettled: set[int] = set()
        self._cancelled: Any = None
        self._next_pump = 0.0
        self._heard_at = time.monotonic()
        self._topology = topology
        self.publisher = Publisher(connection, topology)
        try:
            topology.ensure_work(connection, queues)
            self._channel = connection.channel()
            self._acks = _acks(self._channel, consuming)
            if not consuming.pull:
                self._subscribe(queues)
        except BaseException:
            self.abandon()
            raise

    # Deliveries

    def take(self, limit: int) -> list[Delivery]:
        """At most `limit` deliveries that have arrived."""
        deliveries: list[Delivery] = []
        while self._inbox and len(deliveries) < limit:
            queue, received, body = self._inbox.popleft()
            tag = received.method.delivery_tag
            self._unsettled.add(tag)
            deliveries.append(Delivery(message_from(queue, received, body), Token(self, queue, tag)))
            if self._consuming.ack is AckMode.AUTO:
                self._acks.finish(tag)
        if self._consuming.ack is AckMode.AUTO:
            self._acks.flush()
        return deliveries

    def pump(self, limit: int, timeout_s: float, has_been_woken: Callable[[], bool]) -> None:
        """Serve the connection: heartbeats, deliveries, due acknowledgements.

        Returns when a delivery is available and `limit` is not 0, after `timeout_s` seconds, or when woken.

        Raises:
            AMQPError, OSError: the session has ended.
        """
        until = time.monotonic() + timeout_s
        while True:
            self._acks.flush_due()
            if self._consuming.pull:
                self._pull(limit)
            now = time.monotonic()
            done = self._has(limit) or has_been_woken() or now >= until
            if not self._has(limit) or now >= self._next_pump:
                self._work(0.0 if done else until - now)
            if done or self._has(limit):
                return

    def _has(self, limit: int) -> bool:
        return bool(self._inbox) and limit > 0

    def _work(self, wait_s: float) -> None:
        limits = [wait_s, self._acks.due_in_s, _PULL_EVERY_S if self._consuming.pull else None]
        self._connection.process_data_events(min(limit for limit in limits if limit is not None))
        self._next_pump = time.monotonic() + _PUMP_EVERY_S
        if self._cancelled is not None:
            raise pika_errors.ConsumerCancelled(self._cancelled)
        if not self._channel.is_open:
            raise pika_errors.ChannelWrongStateError("the broker closed the channel")
        if not self._consuming.pull:
            self._check_consumers()

    def _check_consumers(self) -> None:
        """Detect a consumer that the broker lost without a cancel, which happens in clusters."""
        if time.monotonic() - self._heard_at < _DOUBT_AFTER_S:
            return
        self._heard_at = time.monotonic()
        for queue in self._queues:
            if not self._topology.consumers(self._connection, queue):
                raise pika_errors.ChannelError(f"queue {queue!r} has no consumer any more")

    # Settlements

    def claim(self, tag: int) -> bool:
        """Mark a delivery as settled. False: it was settled before."""
        if tag not in self._unsettled:
            return False
        self._unsettled.remove(tag)
        return True

    def acknowledge(self, tag: int) -> None:
        """Acknowledge a delivery. Raises AMQPError or OSError when the session has ended."""
        if self._consuming.ack is not AckMode.AUTO:
            self._acks.finish(tag)

    def give_back(self, tag: int) -> None:
        """Return a delivery to its queue. Raises AMQPError or OSError when the session has ended."""
        self._acks.give_back(tag)

    # Ends

    def reason(self, error: BaseException) -> BaseException:
        """Why the session ended, in the broker's own words if it gave any."""
        # pika raises the broker's reason only in a call that waits for an answer of that channel.
        closed = getattr(self._channel, "_closing_reason", None)
        return closed if isinstance(closed, pika_errors.ChannelClosedByBroker) else error

    def wake(self) -> None:
        """Make a waiting `pump` return. Any thread may call this."""
        with suppress(*LOST):
            self._connection.add_callback_threadsafe(_nothing)

    def close(self) -> None:
        """Send the last acknowledgements and close. Raises AMQPError or OSError when the session has ended."""
        for consumer in self._channel.consumer_tags:
            self._channel.basic_cancel(consumer)
        self._acks.flush()
        for _, received, _ in self._inbox:
            self._acks.give_back(received.method.delivery_tag)
        self._inbox.clear()
        self._connection.close()

    def abandon(self) -> None:
        """Close the connection without settling anything."""
        with suppress(*LOST):
            self._connection.close()

    # Private

    def _subscribe(self, queues: Sequence[str]) -> None:
        self._channel.basic_qos(
            prefetch_count=self._consuming.prefetch, global_qos=self._consuming.per_channel_prefetch
        )
        self._channel.add_on_cancel_callback(self._on_cancel)
        for queue in queues:
            self._channel.basic_consume(queue, partial(self._on_message, queue))

    def _on_cancel(self, frame: Any) -> None:
        self._cancelled = frame

    def _on_message(self, queue: str, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        del channel
        self._heard_at = time.monotonic()
        self._acks.delivered(method.delivery_tag)
        self._inbox.append((queue, Received(method, properties), body))

    def _pull(self, limit: int) -> None:
        """Fetch one message at a time from each queue in turn, until all queues are empty."""
        empty = 0
        while len(self._inbox) < limit and empty < len(self._queues):
            queue = self._queues[0]
            self._queues.rotate(-1)
            method, properties, body = self._channel.basic_get(queue)
            if method is None:
                empty += 1
            else:
                empty = 0
                self._on_message(queue, self._channel, method, properties, body)


def _acks(channel: Any, consuming: Consuming) -> Acks:
    if consuming.ack is AckMode.MANUAL:
        return EachAtOnce(channel)
    return Batched(
        channel,
        batch=consuming.ack_batch,
        interval_s=consuming.ack_interval_s,
        prefetch=consuming.prefetch,
    )


def _nothing() -> None:
    pass
