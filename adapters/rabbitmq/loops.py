"""For a loop of your own over pika: the message of a delivery, and what to tell the broker of its result."""

from __future__ import annotations

from typing import Any, Final

from idempotent.adapters.rabbitmq.messages import Received, message_from
from idempotent.message import Message
from idempotent.outcomes import ACK, Action, Result

_PAUSE_S: Final = 1.0


def from_pika(queue: str, method: Any, properties: Any, body: bytes) -> Message:
    """The message of a delivery, as the adapter makes it: the same id, so the same key.

    Args:
        queue: that it came from, which is the message's subject. Not the routing key.
        method: `Basic.Deliver`, or `Basic.GetOk`.
        properties: `BasicProperties`.
        body: the payload.
    """
    return message_from(queue, Received(method, properties), body)


def settle(result: Result, channel: Any, method: Any) -> None:
    """Tell RabbitMQ what became of a delivery: acknowledge it, let it come again, or reject it.

    It comes again after `result.retry_after_s`, or a second: pika's connection gives it back then, and processes other
    deliveries meanwhile. Let pika work for that, in `start_consuming`, `consume` or `connection.sleep`. Until then the
    delivery is unacknowledged, and counts against the prefetch limit. One that is dead or rejected goes to the queue's
    dead-letter exchange; without one RabbitMQ drops it.

    Call it in the thread that has the channel.

    Args:
        result: of `consumer.process`.
        channel: that delivered the message: of a BlockingConnection, or one with an `ioloop`.
        method: of the delivery.
    """
    tag, action = method.delivery_tag, result.action
    if action is ACK:
        channel.basic_ack(tag)
    elif action is Action.DEAD_LETTER:
        channel.basic_reject(tag, requeue=False)
    else:

        def give_back() -> None:
            if channel.is_open:  # else the broker has delivered it again
                channel.basic_nack(tag, requeue=True)

        connection = channel.connection
        clock = connection if hasattr(connection, "call_later") else connection.ioloop
        if channel.is_open:  # the clock of a connection that has closed raises a ValueError
            clock.call_later(result.retry_after_s or _PAUSE_S, give_back)
