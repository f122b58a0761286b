"""Lane: the parcels for one destination, sent one after the other on a channel of their own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from idempotent.adapters.rabbitmq.client import pika, pika_errors
from idempotent.adapters.rabbitmq.messages import sendable
from idempotent.adapters.rabbitmq.topology import Place
from idempotent.errors import AdapterError

# RabbitMQ's words for a body that is larger than its `max_message_size`.
_MAX_MESSAGE_SIZE: Final = "max size"


class NotTakenError(AdapterError):
    """The broker refused the message."""


class TooLargeError(NotTakenError):
    """The broker refused the message because of its size, and always will."""


@dataclass(frozen=True, slots=True)
class Item:
    """One message to publish."""

    place: Place
    body: bytes
    properties: Any


@dataclass(slots=True, eq=False)
class Parcel:
    """Messages that are published together and confirmed together.

    Attributes:
        items: the messages.
        repeat: send them again when the connection is lost before the broker has confirmed them.
        wanted: whether they shall still be sent; asked when their turn comes.
        copy: what the sender knows the parcel by.
        error: why the broker did not confirm all of them; valid once `done` is set.
        done: set when the parcel is finished.
    """

    items: Sequence[Item]
    repeat: bool = True
    wanted: Callable[[], bool] = lambda: True
    copy: Any = None
    error: AdapterError | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Lane:
    """One destination's channel. A destination that does not answer stops its own lane, and no other.

    One parcel at a time is out, so a refusal or a return belongs to it. All methods run in the publisher's thread.

    Args:
        finished: called with each parcel that is confirmed, refused or not wanted any more.
    """

    def __init__(self, finished: Callable[[Parcel], None]) -> None:
        self._finished = finished
        self._waiting: deque[Parcel] = deque()
        self._parcel: Parcel | None = None
        self._connection: Any = None
        self._channel: Any = None
        self._tag = 0
        self._open: set[int] = set()
        self._refused = False
        self._returned: list[tuple[str, bytes, Any]] = []
        self._declared: set[str] = set()

    def add(self, parcel: Parcel) -> None:
        """Send a parcel after those that wait."""
        self._waiting.append(parcel)
        self._next()

    def connected(self, connection: Any) -> None:
        """Continue on a new connection."""
        self._connection = connection
        self._next()

    def lost(self, error: AdapterError) -> None:
        """The connection is lost, and with it the answers. Parcels that may be repeated wait for the next one."""
        self._connection = self._channel = None
        parcels = [*([self._parcel] if self._parcel else []), *self._waiting]
        self._parcel = None
        self._waiting.clear()
        for parcel in parcels:
            if parcel.repeat:
                self._waiting.append(parcel)
            else:
                self._finish(parcel, error)

    # Private

    def _next(self) -> None:
        while self._parcel is None and self._waiting and self._connection and self._connection.is_open:
            parcel = self._waiting.popleft()
            if not parcel.wanted():
                self._finish(parcel, None)
                continue
            self._parcel = parcel
            self._declared.clear()
            if self._channel is None:
                self._connection.channel(on_open_callback=self._on_channel)
            else:
                self._begin()

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        self._tag = 0
        channel.add_on_close_callback(self._on_closed)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._begin())

    def _on_return(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        properties.headers = sendable(properties.headers or {})
        self._returned.append((method.routing_key, body, properties))

    def _begin(self) -> None:
        self._send([(item.place.queue, item.body, item.properties) for item in self._items()])

    def _send(self, messages: Sequence[tuple[str, bytes, Any]]) -> None:
        self._refused = False
        self._returned = []
        channel = self._channel
        self._open = set(range(self._tag + 1, self._tag + len(messages) + 1))
        self._tag += len(messages)
        for queue, body, properties in messages:
            if not channel.is_open:
                return
            channel.basic_publish("", queue, body, properties, mandatory=True)

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        tag = method.delivery_tag
        if method.multiple:
            self._open = {each for each in self._open if each > tag}
        else:
            self._open.discard(tag)
        self._refused |= isinstance(method, pika.spec.Basic.Nack)
        if self._open or self._parcel is None:
            return
        names = ", ".join(dict.fromkeys(repr(item.place.queue) for item in self._items()))
        if self._refused:
            self._end(NotTakenError(f"queue {names} refuses it; is it full, or without a majority?"))
        elif self._returned:
            self._create()
        else:
            self._end(None)

    def _create(self) -> None:
        """Create the queues that turned out to be missing, then send to them what the broker returned."""
        missing = dict.fromkeys(queue for queue, _, _ in self._returned)
        places = {item.place.queue: item.place for item in self._items()}
        returned = self._returned
        for queue in missing:
            if queue in self._declared or places[queue].arguments is None:
                self._end(NotTakenError(f"queue {queue!r} does not exist"))
                return
        self._declare([places[queue] for queue in missing], lambda: self._send(returned))

    def _declare(self, places: Sequence[Place], then: Callable[[], None]) -> None:
        if not places:
            then()
            return
        place, *rest = places
        self._declared.add(place.queue)
        self._channel.queue_declare(
            place.queue,
            durable=True,
            arguments=place.arguments,
            callback=lambda _: self._declare(rest, then),
        )

    def _on_closed(self, channel: Any, reason: BaseException) -> None:
        if channel is not self._channel:
            return
        self._channel = None
        if not isinstance(reason, pika_errors.ChannelClosedByBroker):
            return  # the connection is lost, and says so itself
        text = reason.reply_text
        kind = TooLargeError if _MAX_MESSAGE_SIZE in text else NotTakenError
        self._end(kind(f"the broker refuses it: {text}"))

    def _end(self, error: AdapterError | None) -> None:
        parcel, self._parcel = self._parcel, None
        if parcel is not None:
            self._finish(parcel, error)
        self._next()

    def _finish(self, parcel: Parcel, error: AdapterError | None) -> None:
        parcel.error = error
        self._finished(parcel)

    def _items(self) -> Sequence[Item]:
        return self._parcel.items if self._parcel is not None else ()
