"""RabbitMQ, over AMQP 0-9-1."""

from __future__ import annotations

from idempotent.adapters.rabbitmq.adapter import RabbitMqAdapter
from idempotent.adapters.rabbitmq.loops import from_pika, settle
from idempotent.adapters.rabbitmq.options import AckMode, QueueType

__all__ = ["AckMode", "QueueType", "RabbitMqAdapter", "from_pika", "settle"]
