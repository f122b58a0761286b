"""Messages from AMQP deliveries, and AMQP properties from messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from idempotent.adapters.copies import KEY_HEADER, ORIGIN_HEADER, REASON_HEADER, take_ours, without_ours
from idempotent.adapters.rabbitmq.client import pika
from idempotent.message import Message, moment_of, received_message

_SHORT_STRING_BYTES: Final = 255
# The notes of the broker, and of its plugins for federation and shovels, about a message. No producer gave them to it,
# so no handler sees them, and none is sent. From 4.0 on the broker ignores an x-death that a client sends.
_OF_THE_BROKER: Final = frozenset(
    {
        *("x-death", "x-delivery-count", "x-acquired-count"),
        *("x-received-from", "x-shovelled", "x-shovelled-timestamp"),
        *(
            f"x-{which}-death-{what}"
            for which in ("first", "last")
            for what in ("exchange", "queue", "reason")
        ),
    }
)
# The broker would obey the producer's `CC` again, and send copies to other queues.
_NOT_SENT: Final = _OF_THE_BROKER | {"CC", "BCC"}
# Not `expiration`: a dead letter would vanish, a delayed copy arrive early. Not `user_id`: the broker refuses
# another user's. Not `delivery_mode`: copies are always persistent.
_COPIED: Final = (
    *("content_type", "content_encoding", "priority", "correlation_id", "reply_to"),
    *("timestamp", "type", "app_id", "cluster_id"),
)
_PERSISTENT: Final = 2


@dataclass(frozen=True, slots=True)
class Received:
    """The `raw` of a message: pika's own objects.

    Attributes:
        method: `pika.spec.Basic.Deliver`, or `GetOk`: exchange, routing key, delivery tag.
        properties: `pika.BasicProperties`.
    """

    method: Any
    properties: Any


def message_from(queue: str, received: Received, body: bytes) -> Message:
    """The message of a delivery. Its subject is the queue; the routing key is in `raw.method`."""
    given = received.properties.headers or {}
    headers = {name: value for name, value in given.items() if name not in _OF_THE_BROKER}
    ours = take_ours(headers, queue)
    sent_at = received.properties.timestamp  # in seconds
    return received_message(
        queue,
        body,
        _identity(ours.get(KEY_HEADER), received.properties.message_id),
        headers,
        bool(received.method.redelivered),
        received.method.delivery_tag,
        received,
        timestamp=None if sent_at is None else moment_of(sent_at * 1000),
    )


def late_s(received: Received) -> float:
    """For how many seconds at least a delayed message was on its way after its delay; 0: that is unknown.

    The broker's clock says, in whole seconds, when the delay was over, and this machine's what time it is.
    """
    if received.method.redelivered:
        return 0.0  # it was here before
    match (received.properties.headers or {}).get("x-death"):
        case [{"reason": "expired", "time": datetime() as over}, *_]:
            return max(time.time() - over.timestamp() - 1.0, 0.0)
    return 0.0


def ours_of(message: Message, queue: str) -> Mapping[str, Any]:
    """This library's headers of a message that was received from `queue`, as far as they hold."""
    received = message.raw.properties.headers if isinstance(message.raw, Received) else None
    return take_ours(dict(received or {}), queue)


def written_by_broker(message: Message, work_of: Callable[[str], str]) -> Mapping[str, Any]:
    """What RabbitMQ itself says of a dead letter, such as one over a delivery limit, in this library's headers.

    Args:
        message: the letter.
        work_of: the work queue whose messages a queue has.
    """
    received = message.raw.properties.headers if isinstance(message.raw, Received) else None
    match (received or {}).get("x-death"):
        case [{"reason": str(reason), "queue": str(queue)}, *_]:
            why = f"RabbitMQ moved it from the queue {queue}: {reason}"
            return {ORIGIN_HEADER: work_of(queue), REASON_HEADER: why}
    return {}


def properties_to_publish(message: Message) -> Any:
    """The properties of a message to publish: under its own id, otherwise as it arrived."""
    headers = dict(without_ours(message.headers))
    fits = isinstance(message.id, str) and len(message.id.encode()) <= _SHORT_STRING_BYTES
    if message.id is not None and not fits:
        headers[KEY_HEADER] = message.id
    return _properties(message, headers, message.id if fits else None)


def properties_of_copy(message: Message, headers: Mapping[str, Any]) -> Any:
    """The properties of a copy of a received message, with headers that carry its id."""
    arrived = message.raw.properties.message_id if isinstance(message.raw, Received) else None
    return _properties(message, headers, arrived)


def _properties(message: Message, headers: Mapping[str, Any], message_id: Any) -> Any:
    given: dict[str, Any] = {}
    if isinstance(message.raw, Received):
        given = {name: getattr(message.raw.properties, name) for name in _COPIED}
    given["headers"] = {name: sendable(value) for name, value in headers.items() if name not in _NOT_SENT}
    return pika.BasicProperties(**given, message_id=message_id, delivery_mode=_PERSISTENT)


class _Exact(Decimal):
    """A number that pika writes with its trailing zeros: as a part of a key, 1.10 and 1.1 are two."""

    def normalize(self, context: Any = None) -> Decimal:  # noqa: ARG002 - pika calls it
        """The number itself."""
        return self


def _identity(key: Any, message_id: str | bytes | None) -> Any:
    """The id; one that is neither text nor a whole number stays as it is, and the consumer rejects its message."""
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    return message_id or None if key is None or key in ("", b"") else key


def sendable(value: Any) -> Any:
    """A header's value in a form that pika can write: it reads more types than it writes."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Decimal):
        return _Exact(value)
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {name: sendable(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [sendable(item) for item in value]
    return value
