"""Session: one connection's life, which is the epoch of all that it delivers."""

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
from idempotent.adapters.rabbitmq.options import AckMode
from idempotent.adapters.rabbitmq.publisher import Publisher
from idempotent.adapters.rabbitmq.topology import Topology
from idempotent.errors import ConfigurationError

_MOST_PREFETCH: Final = 65_535
# With deliveries at hand, how often the connection gets a turn all the same.
_PUMP_EVERY_S: Final = 0.05
_PULL_EVERY_S: Final = 0.1
# After so long without a message, the broker is asked whether it still has a consumer here.
_DOUBT_AFTER_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Consuming:
    """How deliveries are asked for and acknowledged. `RabbitMqAdapter` explains each.

    Raises:
        ConfigurationError: a number is out of its range.
    """

    ack: AckMode
    ack_batch: int
    ack_interval_s: float
    prefetch: int
    per_channel_prefetch: bool
    pull: bool

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 1 <= self.prefetch <= _MOST_PREFETCH:
            raise ConfigurationError(f"prefetch must be from 1 to {_MOST_PREFETCH}, not {self.prefetch}")
        if self.ack_batch < 1:
            raise ConfigurationError(f"ack_batch must be at least 1, not {self.ack_batch}")
        if self.ack_interval_s <= 0:
            raise ConfigurationError(f"ack_interval_s must be positive, not {self.ack_interval_s}")


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """A delivery's handle: its tag means something only in its session."""

    session: Session
    queue: str
    tag: int


class Session:
    """A connection with a channel that consumes and one that publishes.

    Everything in it ends together: when the channel is closed, or the broker cancels a consumer, so does the session.
    Its unsettled deliveries come again in the next one.

    Args:
        connection: open; it belongs to the session from here on.
        topology: makes what is missing.
        queues: what to consume.
        consuming: how.

    Raises:
        AMQPError, OSError: the broker refuses, or is gone.
    """

    def __init__(
        self, connection: Any, topology: Topology, queues: Sequence[str], consuming: Consuming
    ) -> None:
        """Consume."""
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
        """At most so many that have arrived."""
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
        """Let the connection work: heartbeats, deliveries, acknowledgements that are due.

        Returns when there are deliveries and `limit` allows one, after `timeout_s`, or when it has been woken.

        Raises:
            AMQPError, OSError: the session is over.
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
            self._doubt()

    def _doubt(self) -> None:
        """See whether the broker has lost a consumer without a word, which happens to clusters."""
        if time.monotonic() - self._heard_at < _DOUBT_AFTER_S:
            return
        self._heard_at = time.monotonic()
        for queue in self._queues:
            if not self._topology.consumers(self._connection, queue):
                raise pika_errors.ChannelError(f"queue {queue!r} has no consumer any more")

    # Settlements

    def claim(self, tag: int) -> bool:
        """Whether it is unsettled; from now on it is not."""
        if tag not in self._unsettled:
            return False
        self._unsettled.remove(tag)
        return True

    def acknowledge(self, tag: int) -> None:
        """The broker may forget it. Raises AMQPError or OSError when the session is over."""
        if self._consuming.ack is not AckMode.AUTO:
            self._acks.finish(tag)

    def give_back(self, tag: int) -> None:
        """The broker delivers it again. Raises AMQPError or OSError when the session is over."""
        self._acks.give_back(tag)

    # Ends

    def reason(self, error: BaseException) -> BaseException:
        """Why it is over, in the broker's own words if there are any."""
        # pika tells nobody, unless one waits for an answer of that channel.
        said = getattr(self._channel, "_closing_reason", None)
        return said if isinstance(said, pika_errors.ChannelClosedByBroker) else error

    def wake(self) -> None:
        """End a `pump` that waits. For any thread."""
        with suppress(*LOST):
            self._connection.add_callback_threadsafe(_nothing)

    def close(self) -> None:
        """Say what there is left to say, and go. Raises AMQPError or OSError when the session is over."""
        for consumer in self._channel.consumer_tags:
            self._channel.basic_cancel(consumer)
        self._acks.flush()
        for _, received, _ in self._inbox:
            self._acks.give_back(received.method.delivery_tag)
        self._inbox.clear()
        self._connection.close()

    def abandon(self) -> None:
        """Go without a word."""
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
        """One at a time from each queue in turn, until all of them are empty."""
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
