"""Session: one connection and its deliveries, whose epoch it is, and when it acknowledges them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from idempotent.adapters.base import Delivery
from idempotent.adapters.fair_queue import FairQueue
from idempotent.adapters.rabbitmq.client import LOST, pika_errors
from idempotent.adapters.rabbitmq.messages import Received, late_s, message_from
from idempotent.adapters.rabbitmq.options import AckMode, Consuming, Window
from idempotent.adapters.rabbitmq.reading import fault_in
from idempotent.adapters.rabbitmq.topology import Topology, get
from idempotent.adapters.rabbitmq.windows import Windows
from idempotent.adapters.reconnecting import DOUBT_AFTER_S
from idempotent.adapters.watermark import Watermark
from idempotent.errors import MessageError
from idempotent.logs import EventLog
from idempotent.observe.log_lines import LogThrottle

log = EventLog(__name__)

# How often the connection is served while deliveries are available.
_PUMP_EVERY_S: Final = 0.05
_PULL_EVERY_S: Final = 0.1
# A delayed message is on its way for milliseconds; one that its queue refuses is offered again after three minutes.
_LATE_S: Final = 60.0
# The broker adds this header to each message of a stream.
_STREAM_HEADER: Final = "x-stream-offset"
# How long a finished message waits for a slow one before it, so that one acknowledgement can cover both.
_MOST_ACK_DELAY_S: Final = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """A delivery's handle. A tag is valid only in its session.

    Attributes:
        queue: the work queue that its message is for.
        came_from: the queue that it came from.
    """

    session: Session
    queue: str
    came_from: str
    tag: int


class Session:
    """A connection with a channel that consumes. It publishes nothing, so no alarm of the broker blocks it.

    The session ends with its connection, when a channel is closed, or when the broker cancels a consumer. The broker
    delivers its unsettled messages again in the next session.

    Args:
        connection: open; the session owns and closes it.
        topology: creates missing queues.
        queues: the queues to consume.
        consuming: how to consume.
        window: how many unacknowledged messages of a queue the broker may send.
        again: there was a session before, so a missing work queue has been deleted.
        paused: the work queues of which nothing is consumed until `pause` says otherwise.

    Raises:
        AMQPError, OSError: the broker refused, or the connection was lost.
        AdapterError: a work queue has been deleted.
    """

    def __init__(
        self,
        connection: Any,
        topology: Topology,
        queues: Sequence[str],
        consuming: Consuming,
        *,
        window: Window,
        again: bool = False,
        paused: Collection[str] = (),
    ) -> None:
        self._connection = connection
        self._consuming = consuming
        # Each queue and the work queue whose messages it has, in the order in which they are pulled.
        self._queues = deque(topology.consumed(queues))
        self._inbox: FairQueue[tuple[str, str, Received, bytes, float]] = FairQueue()
        self._unsettled: set[int] = set()
        self._suspects: set[str] = set()
        self._served: set[str] = set()
        self._no_streams: set[str] = set()
        self._is_cancelled = False
        self._next_pump = 0.0
        self._opened_at = self._heard_at = time.monotonic()
        self._told_late = LogThrottle()
        self._topology = topology
        self._window = window
        self._windows = Windows(window)
        self._paused = frozenset(paused)
        self._consumers: dict[str, list[str]] = {}
        try:
            topology.ensure_work(connection, queues, again=again)
            self._channel = connection.channel()
            self._acks = _acks(self._channel, consuming, window)
            if not consuming.pull:
                self._channel.add_on_cancel_callback(self._on_cancel)
                self._subscribe_to(frozenset(queues) - self._paused)
        except BaseException:
            self.abandon()
            raise

    # Deliveries

    def take(self, limit: int, full: Container[str]) -> list[Delivery]:
        """At most `limit` deliveries that have arrived from queues that are not `full`.

        Raises:
            AMQPError, OSError: the session has ended before the broker had the automatic acknowledgements.
        """
        deliveries: list[Delivery] = []
        while len(deliveries) < limit and (arrived := self._inbox.take(full)) is not None:
            came_from, queue, received, body, at = arrived
            tag = received.method.delivery_tag
            self._unsettled.add(tag)
            self._windows.taken(came_from, time.monotonic() - at)
            fault = fault_in(received.properties)
            error = None if fault is None else MessageError(f"a part of the message cannot be read: {fault}")
            deliveries.append(
                Delivery(message_from(queue, received, body), Token(self, queue, came_from, tag), error)
            )
            if self._consuming.ack is AckMode.AUTO:
                self._acks.finish(tag)
        if self._consuming.ack is AckMode.AUTO and deliveries:
            self._acks.flush()
            # Wait for an answer: acknowledgements that are lost with the connection bring their messages back.
            self._channel.flow(active=True)
        return deliveries

    def pause(self, paused: Collection[str]) -> None:
        """Consume nothing of these work queues, and again of those that were paused before.

        What their queues have sent ahead is returned: unsettled for longer than `consumer_timeout`, it would cost the
        channel, and with it the deliveries of all other queues.

        Raises:
            AMQPError, OSError: the session has ended.
        """
        before, self._paused = self._paused, frozenset(paused)
        if self._paused == before:
            return
        for queue, work in self._queues:
            if work in self._paused - before:
                self._cancel(self._consumers.pop(queue, ()))
                self._windows.closed(queue)
        for work in self._paused - before:
            for _, _, received, _, _ in self._inbox.remove(work):
                self.give_back(received.method.delivery_tag)
        if not self._consuming.pull:
            self._subscribe_to(before - self._paused)

    def pump(
        self, limit: int, full: Container[str], timeout_s: float, has_been_woken: Callable[[], bool]
    ) -> None:
        """Serve the connection: heartbeats, deliveries, due acknowledgements.

        Returns when `take` has a delivery and `limit` is not 0, after `timeout_s` seconds, or when woken.

        Raises:
            AMQPError, OSError: the session has ended.
        """
        until = time.monotonic() + timeout_s
        while True:
            self._acks.flush_due()
            if self._consuming.pull:
                self._pull(limit, full)
            now = time.monotonic()
            has_some = limit > 0 and self._inbox.has(full)
            done = has_some or has_been_woken() or now >= until
            if not has_some or now >= self._next_pump:
                self._work(0.0 if done else until - now)
            has_some = limit > 0 and self._inbox.has(full)
            for queue in self._windows.too_large():
                self._shrink(queue)
            if limit and not has_some:
                for queue, work, more in self._windows.full():
                    if work not in full:
                        self._subscribe(queue, work, more)
            if done or has_some:
                return

    def _work(self, wait_s: float) -> None:
        limits = [wait_s, self._acks.due_in_s, _PULL_EVERY_S if self._consuming.pull else None]
        self._connection.process_data_events(min(limit for limit in limits if limit is not None))
        self._next_pump = time.monotonic() + _PUMP_EVERY_S
        if self._is_cancelled:
            raise pika_errors.ChannelError(
                "the broker cancelled the consumer of a queue: it may have deleted the queue or, from "
                "RabbitMQ 4.3 on, a message was unacknowledged for longer than consumer_timeout"
            )
        if not self._channel.is_open:
            raise pika_errors.ChannelWrongStateError("the broker closed the channel")
        while self._suspects:
            self._refuse_stream(self._suspects.pop())
        if not self._consuming.pull:
            self._check_consumers()

    def backlog(self) -> dict[str, int]:
        """The messages that wait in the queues of each work queue. Raises AMQPError or OSError when it is lost."""
        found: Counter[str] = Counter()
        for queue, work in self._queues:
            found[work] += self._topology.counts(self._connection, queue)[0]
        return found

    def _check_consumers(self) -> None:
        """Detect a consumer that the broker lost without a cancel, which happens in clusters."""
        if time.monotonic() - self._heard_at < DOUBT_AFTER_S:
            return
        self._heard_at = time.monotonic()
        for queue, work in self._queues:
            if work not in self._paused and not self._topology.counts(self._connection, queue)[1]:
                raise pika_errors.ChannelError(f"queue {queue!r} has no consumer any more")

    def _refuse_stream(self, queue: str) -> None:
        self._no_streams.add(queue)
        channel = self._connection.channel()
        get(channel, queue)
        channel.close()  # returns the message

    def may_handle(self, token: Token) -> bool:
        """Whether the broker gives this session what it gives to the consumers of the delivery's work queue.

        A delayed message proves nothing: where a queue has a single active consumer, all workers consume its delayed
        messages, and AMQP tells none of them which one is active.
        """
        return token.came_from == token.queue or token.queue in self._served

    # Settlements

    def mark_settled(self, tag: int) -> bool:
        """Mark a delivery as settled. False: it was settled before."""
        if tag not in self._unsettled:
            return False
        self._unsettled.remove(tag)
        return True

    def acknowledge(self, tag: int) -> None:
        """Acknowledge a delivery. Raises AMQPError or OSError when the session has ended."""
        if self._consuming.ack is not AckMode.AUTO:
            self._windows.settled(tag)
            self._acks.finish(tag)

    def give_back(self, tag: int) -> None:
        """Return a delivery to its queue. Raises AMQPError or OSError when the session has ended."""
        self._windows.settled(tag)
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
        if not self._channel.is_open:
            raise pika_errors.ChannelWrongStateError("the broker closed the channel")
        for consumer in self._channel.consumer_tags:
            self._channel.basic_cancel(consumer)
        self._acks.flush()
        for _, _, received, _, _ in self._inbox.clear():
            self._acks.give_back(received.method.delivery_tag)
        self._connection.close()

    def abandon(self) -> None:
        """Close the connection without settling anything."""
        with suppress(*LOST):
            self._connection.close()

    # Private

    def _subscribe_to(self, works: Container[str]) -> None:
        for queue, work in self._queues:
            if work in works:
                self._subscribe(queue, work, self._window.prefetch)

    def _subscribe(self, queue: str, work: str, prefetch: int) -> None:
        self._channel.basic_qos(prefetch_count=prefetch, global_qos=self._consuming.per_channel_prefetch)
        self._windows.opened(queue, work, prefetch)
        consumer = self._channel.basic_consume(queue, partial(self._on_message, queue, work))
        self._consumers.setdefault(queue, []).append(consumer)

    def _shrink(self, queue: str) -> None:
        """Leave a queue its first consumer. What the others were sent stays here."""
        first, *others = self._consumers[queue]
        self._cancel(others)
        self._consumers[queue] = [first]
        self._windows.shrunk(queue)

    def _cancel(self, consumers: Collection[str]) -> None:
        # pika would reject what has arrived, which counts as a delivery.
        self._connection.process_data_events(0)
        for consumer in consumers:
            self._channel.basic_cancel(consumer)

    def _on_cancel(self, frame: Any) -> None:
        del frame
        self._is_cancelled = True

    def _on_message(
        self, queue: str, work: str, channel: Any, method: Any, properties: Any, body: bytes
    ) -> None:
        del channel
        self._heard_at = time.monotonic()
        if _STREAM_HEADER in (properties.headers or ()) and queue not in self._no_streams:
            self._suspects.add(queue)
        self._acks.delivered(method.delivery_tag)
        self._windows.delivered(queue, method.delivery_tag)
        received = Received(method, properties)
        if queue == work:
            self._served.add(work)
        else:
            self._say_late(queue, late_s(received))
        self._inbox.add(work, (queue, work, received, body, self._heard_at))

    def _say_late(self, queue: str, seconds: float) -> None:
        """Say in the log that a delayed message came late, unless this worker was not there all the time."""
        was_here = time.monotonic() - self._opened_at > seconds
        if seconds > _LATE_S and was_here and (more := self._told_late.take()) is not None:
            log.warning(
                "delayed_message_late", extra={"queue": queue, "late_s": round(seconds), "more": more}
            )

    def _pull(self, limit: int, full: Container[str]) -> None:
        """Fetch one message at a time from each queue in turn, until all queues are empty or full."""
        empty = 0
        while len(self._inbox) < limit and empty < len(self._queues):
            queue, work = self._queues[0]
            self._queues.rotate(-1)
            method, properties, body = (None, None, b"") if work in full else get(self._channel, queue)
            if method is None:
                empty += 1
            else:
                empty = 0
                self._on_message(queue, work, self._channel, method, properties, body)


def _acks(channel: Any, consuming: Consuming, window: Window) -> Acks:
    if consuming.ack is AckMode.MANUAL:
        return EachAtOnce(channel)
    return Batched(
        channel, batch=window.ack_batch, interval_s=consuming.ack_interval_s, prefetch=window.prefetch
    )


def _nothing() -> None:
    pass


class Acks(ABC):
    """The delivery tags of one channel, from their delivery to their acknowledgement."""

    @abstractmethod
    def delivered(self, tag: int) -> None:
        """The broker delivered this message and waits for its acknowledgement."""

    @abstractmethod
    def finish(self, tag: int) -> None:
        """Acknowledge a message, now or soon."""

    @abstractmethod
    def give_back(self, tag: int) -> None:
        """Return a message to its queue, now."""

    @property
    def due_in_s(self) -> float | None:
        """Seconds until `flush_due` has something to send; None if no acknowledgement waits."""
        return None

    def flush_due(self) -> None:  # noqa: B027 - only Batched waits
        """Send the acknowledgements that have waited long enough."""

    def flush(self) -> None:  # noqa: B027 - only Batched waits
        """Send all waiting acknowledgements."""


class EachAtOnce(Acks):
    """One `basic.ack` per message."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def delivered(self, tag: int) -> None:
        pass

    def finish(self, tag: int) -> None:
        self._channel.basic_ack(tag)

    def give_back(self, tag: int) -> None:
        # Not basic.reject: from 4.3 on, that alone counts against a quorum queue's delivery limit.
        self._channel.basic_nack(tag, requeue=True)


class Batched(Acks):
    """One `basic.ack(multiple=True)` for all deliveries before the first unfinished one.

    It is sent when `batch` deliveries are finished, after `interval_s`, when the broker stops sending (`prefetch`), and
    when no delivery is unfinished. Deliveries that wait longer than a second for a slow one are acknowledged alone.

    Args:
        channel: the channel of the delivery tags.
        batch: finished deliveries at which an acknowledgement is sent.
        interval_s: the longest that a finished delivery waits for a batch to fill.
        prefetch: unacknowledged deliveries at which the broker stops sending.
        clock: seconds; injectable for tests.
    """

    def __init__(
        self,
        channel: Any,
        *,
        batch: int,
        interval_s: float,
        prefetch: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channel = channel
        self._batch = batch
        self._interval_s = interval_s
        self._prefetch = prefetch
        self._clock = clock
        self._open = 0
        self._mark: Watermark[int] = Watermark()
        # Finished but not acknowledged tags, in the order in which they finished, with the time.
        self._done: dict[int, float] = {}
        self._next_try = 0.0

    def delivered(self, tag: int) -> None:
        self._mark.add(tag)
        self._open += 1

    def finish(self, tag: int) -> None:
        if not self._mark.finish(tag):
            return
        self._open -= 1
        now = self._clock()
        if not self._done:
            self._next_try = now + self._interval_s
        self._done[tag] = now
        if self._is_full or not self._open or len(self._done) >= self._batch:
            self._send(one_by_one=self._is_full)

    def give_back(self, tag: int) -> None:
        if self._mark.finish(tag):
            self._open -= 1
            self._channel.basic_nack(tag, requeue=True)

    @property
    def due_in_s(self) -> float | None:
        if not self._done:
            return None
        return 0.0 if self._is_full else max(self._next_try - self._clock(), 0.0)

    def flush_due(self) -> None:
        if self.due_in_s == 0:
            self._send(one_by_one=self._is_full)

    def flush(self) -> None:
        self._send(one_by_one=True)

    @property
    def _is_full(self) -> bool:
        return self._open + len(self._done) >= self._prefetch

    def _send(self, *, one_by_one: bool) -> None:
        mark = self._mark.last
        covered = [tag for tag in self._done if mark is not None and tag <= mark]
        if covered:
            # The greatest tag that still waits: the broker closes the channel over an acknowledged one.
            self._channel.basic_ack(max(covered), multiple=True)
            for tag in covered:
                del self._done[tag]
        now = self._clock()
        for tag, since in list(self._done.items()):
            if one_by_one or now - since >= _MOST_ACK_DELAY_S:
                self._channel.basic_ack(tag)
                del self._done[tag]
        self._next_try = now + self._interval_s
