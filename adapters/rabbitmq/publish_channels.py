"""PublishChannel: the batches for one destination, sent one after the other on a channel of their own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final

from idempotent.adapters.rabbitmq.client import pika, pika_errors
from idempotent.adapters.rabbitmq.topology import QueueDeclaration, created_with, say_deleted
from idempotent.errors import AdapterError
from idempotent.logs import EventLog

log = EventLog(__name__)

# RabbitMQ 3.10, killed within a second after it made a quorum queue, has lost what the queue had confirmed.
_YOUNG_S: Final = 2.0
# RabbitMQ's words for a body that is larger than its `max_message_size`.
_MAX_MESSAGE_SIZE: Final = "max size"


class NotTakenError(AdapterError):
    """The broker refused the message."""


class TooLargeError(NotTakenError):
    """The broker refused the message because of its size, and always will."""


@dataclass(frozen=True, slots=True)
class Item:
    """One message to publish."""

    place: QueueDeclaration
    body: bytes
    properties: Any


@dataclass(slots=True, eq=False)
class PublishBatch:
    """Messages that are published together.

    Attributes:
        items: the messages.
        repeat: send them again when the connection is lost before the broker has confirmed them.
        wanted: called before the messages are sent; False: they are not sent any more.
        copy: the sender's object for this batch.
        pending: the places of the items to which the broker has not answered.
        refused: the places of the items that the broker refused, and why.
        lost: why there will be no answer to the pending ones.
        done: set when the batch is finished.
    """

    items: Sequence[Item]
    repeat: bool = True
    wanted: Callable[[], bool] = lambda: True
    copy: Any = None
    pending: set[int] = field(init=False)
    refused: dict[int, NotTakenError] = field(default_factory=dict)
    lost: AdapterError | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.pending = set(range(len(self.items)))

    @property
    def error(self) -> AdapterError | None:
        """Why the broker has not confirmed all of them; None: it has. Valid once the batch is finished."""
        return next(iter(self.refused.values()), self.lost)

    def refuse(self, place: int, error: NotTakenError) -> None:
        """Note that the broker refused an item."""
        self.pending.discard(place)
        self.refused[place] = error


class PublishChannel:
    """One destination's channel. A destination that does not answer stops its own channel, and no other.

    One batch at a time is out, so a refusal or a return belongs to it. The broker refuses some messages by closing the
    channel, and then forgets those behind them. All without an answer are sent again, one by one, to find out which of
    them it refuses; one that it had taken is repeated. All methods run in the publisher's thread.

    Args:
        finished: called with each batch that is confirmed, refused or not wanted any more.
    """

    def __init__(self, finished: Callable[[PublishBatch], None]) -> None:
        self._finished = finished
        self._waiting: deque[PublishBatch] = deque()
        self._batch: PublishBatch | None = None
        self._connection: Any = None
        self._channel: Any = None
        self._tag = 0
        self._open: dict[int, int] = {}
        """The places of the messages that are out, by their delivery tags, which ascend."""
        self._returned: set[int] = set()
        self._declared: set[str] = set()
        self._known: set[str] = set()
        """The queues that have taken a message."""
        self._one_by_one = False

    def add(self, batch: PublishBatch) -> None:
        """Send a batch after those that wait."""
        self._waiting.append(batch)
        self._next()

    def connected(self, connection: Any) -> None:
        """Continue on a new connection."""
        self._connection = connection
        self._next()

    def lost(self, error: AdapterError) -> None:
        """The connection is lost, and with it the answers. Parcels that may be repeated wait for the next one."""
        self._connection = self._channel = None
        self._open.clear()
        batches = [*([self._batch] if self._batch else []), *self._waiting]
        self._batch = None
        self._waiting.clear()
        for batch in batches:
            if batch.repeat:
                self._waiting.append(batch)
            else:
                batch.lost = error
                self._finished(batch)

    # Private

    def _next(self) -> None:
        while self._batch is None and self._waiting and self._connection and self._connection.is_open:
            batch = self._waiting.popleft()
            if not batch.wanted():
                self._finished(batch)
                continue
            self._batch = batch
            self._declared.clear()
            self._one_by_one = False
            self._go_on(batch)

    def _go_on(self, batch: PublishBatch) -> None:
        """Send what is pending, or end."""
        if not batch.pending:
            self._batch = None
            self._finished(batch)
            self._next()
        elif self._channel is None:
            if self._connection is None or not self._connection.is_open:
                return  # `lost` follows
            self._connection.channel(on_open_callback=self._on_channel)
        else:
            places = sorted(batch.pending)
            self._send(batch, places[:1] if self._one_by_one else places)

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        self._tag = 0
        channel.add_on_close_callback(self._on_closed)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._on_ready(channel))

    def _on_ready(self, channel: Any) -> None:
        if channel is self._channel and self._batch is not None:
            self._go_on(self._batch)

    def _send(self, batch: PublishBatch, places: Sequence[int]) -> None:
        self._returned.clear()
        channel = self._channel
        self._open = dict(zip(range(self._tag + 1, self._tag + len(places) + 1), places, strict=True))
        self._tag += len(places)
        for place in places:
            if not channel.is_open:
                return
            item = batch.items[place]
            channel.basic_publish("", item.place.queue, item.body, item.properties, mandatory=True)

    def _on_return(self, _: Any, method: Any, properties: Any, body: bytes) -> None:
        """Note a message that reached no queue; its confirmation follows. The broker does not say which one it was."""
        items = self._items()
        similar = [
            place
            for place in self._open.values()
            if place not in self._returned and items[place].place.queue == method.routing_key
        ]
        same = (
            place
            for place in similar
            if items[place].properties.message_id == properties.message_id and items[place].body == body
        )
        self._returned.update([next(same, similar[0])] if similar else [])

    def _on_confirm(self, frame: Any) -> None:
        method, batch = frame.method, self._batch
        tag = method.delivery_tag
        if method.multiple:
            tags = list(takewhile(lambda each: each <= tag, self._open))
        else:
            tags = [tag] if tag in self._open else []
        if batch is None or not tags:
            return
        for each in tags:
            place = self._open.pop(each)
            if isinstance(method, pika.spec.Basic.Nack):
                queue = batch.items[place].place.queue
                batch.refuse(
                    place, NotTakenError(f"queue {queue!r} refuses it; is it full, or without a majority?")
                )
            elif place not in self._returned:
                batch.pending.discard(place)
                self._known.add(batch.items[place].place.queue)
        if self._open:
            return
        if self._returned:
            self._create(batch)
        else:
            self._go_on(batch)

    def _create(self, batch: PublishBatch) -> None:
        """Create the queues that turned out to be missing, then send to them what the broker returned."""
        missing: dict[str, QueueDeclaration] = {}
        for place in sorted(self._returned & batch.pending):
            target = batch.items[place].place
            if target.queue in self._declared or target.arguments is None:
                batch.refuse(place, NotTakenError(f"queue {target.queue!r} does not exist"))
            else:
                missing[target.queue] = target
        self._declare(list(missing.values()), lambda: self._send_later(batch))

    def _send_later(self, batch: PublishBatch) -> None:
        """Send to queues that were made just now, when a killed broker would no longer forget them."""
        channel = self._channel

        def send() -> None:
            if self._batch is batch and self._channel is channel:
                self._go_on(batch)

        made = (batch.items[place].place.arguments or {} for place in self._returned & batch.pending)
        if any(arguments.get("x-queue-type") == "quorum" for arguments in made):
            self._connection.ioloop.call_later(_YOUNG_S, send)
        else:
            send()

    def _declare(self, places: Sequence[QueueDeclaration], then: Callable[[], None]) -> None:
        if not places:
            then()
            return
        place, *rest = places
        self._declared.add(place.queue)
        if place.queue in self._known:
            say_deleted(place.queue)
        self._channel.queue_declare(
            place.queue,
            durable=True,
            arguments=created_with(place.arguments, self._connection.server_properties or {}),
            callback=lambda _: self._created(place.queue, rest, then),
        )

    def _created(self, queue: str, rest: Sequence[QueueDeclaration], then: Callable[[], None]) -> None:
        log.info("queue_created", extra={"queue": queue})
        self._declare(rest, then)

    def _on_closed(self, channel: Any, reason: BaseException) -> None:
        if channel is not self._channel:
            return
        self._channel = None
        if not isinstance(reason, pika_errors.ChannelClosedByBroker):
            return  # the connection is lost, and says so itself
        self._open.clear()
        batch = self._batch
        if batch is None:
            return
        if self._one_by_one or len(batch.pending) == 1:
            text = reason.reply_text
            kind = TooLargeError if _MAX_MESSAGE_SIZE in text else NotTakenError
            batch.refuse(min(batch.pending), kind(f"the broker refuses it: {text}"))
        self._one_by_one = True
        self._declared.clear()
        self._go_on(batch)

    def _items(self) -> Sequence[Item]:
        return self._batch.items if self._batch is not None else ()
