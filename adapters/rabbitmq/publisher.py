"""Publisher: a connection of its own, served by a thread of its own, that sends messages with confirms."""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from idempotent.adapters.answers import Answers
from idempotent.adapters.rabbitmq.client import LOST, pika_errors, plain_error
from idempotent.adapters.rabbitmq.publish_channels import (
    Item,
    NotTakenError,
    PublishBatch,
    PublishChannel,
    TooLargeError,
)
from idempotent.adapters.rabbitmq.server import Server
from idempotent.adapters.rabbitmq.topology import QueueDeclaration, fault_in_name
from idempotent.adapters.reconnecting import Reconnecting, describe
from idempotent.errors import AdapterError
from idempotent.logs import EventLog
from idempotent.policy import Backoff

log = EventLog(__name__)

# The broker's and pika's frame_max, less the frame's own bytes. A longer header ends the whole connection.
_MOST_HEADER_BYTES: Final = 131_072 - 64
# How long the broker has to answer that the connection is closed. During an alarm it does not.
_CLOSE_S: Final = 1.0
_BRIEF_S: Final = 1.0
_CONFIRM_S: Final = 60.0
_MOST_ITEMS: Final = 500
_MEANWHILE_S: Final = 0.5
_UNENCODABLE: Final = (
    *(pika_errors.ProtocolSyntaxError, pika_errors.ShortStringTooLong, RecursionError),
    *(struct.error, ValueError, TypeError, AssertionError),
)


class Publisher:
    """Sends batches, each in the channel of its destination, so that a destination that does not answer stops no other.

    The broker stops reading from a connection that publishes while it is short of memory or disk. So this one does
    nothing else: deliveries and acknowledgements have the consuming connection.

    Args:
        server: where to connect; the first batch does.
        backoff: waits between attempts to connect.
        on_finished: called in the publisher's thread when a batch that repeats is finished.
    """

    def __init__(self, server: Server, backoff: Backoff, on_finished: Callable[[], None]) -> None:
        """Start no thread yet."""
        self._server = server
        self._reconnecting = Reconnecting(f"{server.where} (publishing)", backoff=backoff)
        self._on_finished = on_finished
        self._new: deque[tuple[str, PublishBatch]] = deque()
        self._finished: deque[PublishBatch] = deque()
        self._channels: dict[str, PublishChannel] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._connection: Any = None
        self._opened_at: float | None = None
        self._error: BaseException | None = None

    def send(self, batch: PublishBatch, channel: str = "") -> None:
        """Send a batch after the others of its channel, and return at once."""
        self._new.append((channel, batch))
        with self._lock:
            if self._thread is not None and self._connection is not None:
                self._connection.ioloop.add_callback_threadsafe(self._take_new)
        self.start()

    def start(self) -> None:
        """Connect, in a thread of its own, unless that runs already."""
        with self._lock:
            if self._thread is None:
                self._closing = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._closing,), name="idempotent-publisher", daemon=True
                )
                self._thread.start()

    @property
    def channels(self) -> list[str]:
        """The names of all channels."""
        return list(self._channels)

    @property
    def connected(self) -> bool:
        """Whether its connection is open."""
        return self._opened_at is not None and self._connection is not None

    def send_and_wait(
        self, items: Mapping[int, Item], answers: Answers, meanwhile: Callable[[], None]
    ) -> None:
        """Send messages in their order, and return when the broker has answered to all of them, or will not.

        Args:
            items: the messages, by their places.
            answers: gets the answers.
            meanwhile: called now and then while this waits.
        """
        places = list(items)
        chunks = [places[start : start + _MOST_ITEMS] for start in range(0, len(places), _MOST_ITEMS)]
        batches = [PublishBatch([items[place] for place in chunk], repeat=False) for chunk in chunks]
        for batch in batches:
            self.send(batch)
        _await(batches, meanwhile)
        silent = (
            f"the broker did not confirm the message within {_CONFIRM_S:g} s, send it again: is it short of memory or "
            "disk, or the queue without a majority?"
        )
        for batch, chunk in zip(batches, chunks, strict=True):
            # In this order: an answer may still arrive, in the publisher's thread.
            pending, refused = batch.pending.copy(), batch.refused.copy()
            for place, error in refused.items():
                answers.refuse(chunk[place], error)
            answers.lose([chunk[place] for place in pending - refused.keys()], batch.lost or silent)

    def finished(self) -> Iterator[PublishBatch]:
        """The batches that repeat and were finished since the last call."""
        while self._finished:
            yield self._finished.popleft()

    def close(self) -> None:
        """Disconnect, at once if the broker does not answer. It may have what it did not confirm."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._closing.set()
            if self._connection is not None:
                self._connection.ioloop.add_callback_threadsafe(self._disconnect)
        if thread is not None:
            thread.join(2 * _CLOSE_S)
        self._new.clear()
        self._channels = {}

    # In the publisher's thread

    def _run(self, closing: threading.Event) -> None:
        attempts = 0
        while not closing.wait(self._reconnecting.wait_s):
            self._serve(attempts, closing)
            attempts += 1

    def _serve(self, attempt: int, closing: threading.Event) -> None:
        """One connection, until it ends."""
        self._error, self._opened_at = None, None
        connection = self._server.publishing(
            attempt,
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_end,
            on_close_callback=self._on_end,
        )
        with self._lock:
            if not closing.is_set():
                self._connection = connection
        try:
            if self._connection is connection:
                connection.ioloop.start()
        except Exception as error:  # whatever a callback raises
            log.exception("publisher_failed")
            self._error = error
        finally:
            with self._lock:
                self._connection = None
            connection.ioloop.close()
        if not closing.is_set():
            self._lose(plain_error(self._error or ConnectionError("the connection ended")))

    def _on_open(self, connection: Any) -> None:
        self._reconnecting.succeeded()
        connection.add_on_connection_blocked_callback(self._on_blocked)
        connection.add_on_connection_unblocked_callback(self._on_unblocked)
        self._opened_at = time.monotonic()
        for channel in self._channels.values():
            channel.connected(connection)
        self._take_new()

    def _on_end(self, connection: Any, error: BaseException) -> None:
        self._error = error
        connection.ioloop.stop()

    def _on_blocked(self, _connection: Any, frame: Any) -> None:
        log.warning("broker_blocks", extra={"broker": self._server.where, "error": frame.method.reason})

    def _on_unblocked(self, _connection: Any, _frame: Any) -> None:
        log.warning("broker_blocks_no_longer", extra={"broker": self._server.where})

    def _lose(self, error: BaseException) -> None:
        if self._opened_at is None:
            reason = AdapterError(f"not connected to {self._server.where}: {describe(error)}")
        else:
            reason = AdapterError(
                f"the connection was lost before the broker confirmed the message, send it again: {describe(error)}"
            )
        self._take_new()
        for channel in self._channels.values():
            channel.lost(reason)
        if self._opened_at is None or time.monotonic() - self._opened_at < _BRIEF_S:
            self._reconnecting.failed(error)
        else:
            self._reconnecting.lost(error)

    def _take_new(self) -> None:
        while self._new:
            name, batch = self._new.popleft()
            channel = self._channels.get(name)
            if channel is None:
                channel = self._channels[name] = PublishChannel(self._finish)
                if self._connection is not None and self._connection.is_open:
                    channel.connected(self._connection)
            channel.add(batch)

    def _finish(self, batch: PublishBatch) -> None:
        if batch.repeat:
            self._finished.append(batch)
            self._on_finished()
        batch.done.set()

    def _disconnect(self) -> None:
        connection = self._connection
        if connection is None:
            return
        # Its end, in either way, calls _on_end.
        connection.ioloop.call_later(_CLOSE_S, lambda: _abort(connection))
        with suppress(*LOST):
            connection.close()


def _abort(connection: Any) -> None:
    """End a connection whose broker does not answer; pika has no other way."""
    transport = getattr(connection, "_transport", None)
    if transport is not None:
        transport.abort()


def item_for(place: QueueDeclaration, body: bytes | None, properties: Any) -> Item:
    """A message that can be published.

    Raises:
        TooLargeError: the headers are too large.
        NotTakenError: AMQP cannot encode the headers, or the name of the queue, or has no message without a body.
    """
    if body is None:
        raise NotTakenError("RabbitMQ has no tombstones: a message needs a body, if only an empty one")
    size = _size_of(properties)
    if size > _MOST_HEADER_BYTES:
        raise TooLargeError(f"the headers have {size} bytes; {_MOST_HEADER_BYTES} is the most")
    # To some of these the broker does not answer at all.
    fault = fault_in_name(place.queue)
    if fault is not None:
        raise NotTakenError(f"no queue can be named {place.queue!r}: {fault}")
    return Item(place, body, properties)


def takes(properties: Any) -> bool:
    """Whether headers are small enough.

    Raises:
        NotTakenError: AMQP cannot encode them.
    """
    return _size_of(properties) <= _MOST_HEADER_BYTES


def _size_of(properties: Any) -> int:
    try:
        return sum(map(len, properties.encode()))
    except _UNENCODABLE as error:
        raise NotTakenError(f"the headers cannot be sent: {error!r}") from error


def _await(batches: Sequence[PublishBatch], meanwhile: Callable[[], None]) -> None:
    """Wait until all are finished. After the time that the broker has, those that are not sent yet never will be."""
    until = time.monotonic() + _CONFIRM_S
    for batch in batches:
        while not batch.done.wait(_MEANWHILE_S):
            meanwhile()
            if time.monotonic() >= until:
                for each in batches:
                    each.wanted = _no
                return


def _no() -> bool:
    return False
