"""A consumer must not get its own dead letters."""

import pytest

from idempotent import Registry, Worker
from idempotent.adapters.activemq import StompAdapter
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.adapters.rabbitmq import RabbitMqAdapter
from idempotent.checkers import MemoryChecker
from idempotent.errors import ConfigurationError

# Nothing listens there, and nothing is asked.
ADAPTERS = {
    "rabbitmq": lambda: RabbitMqAdapter("amqp://127.0.0.1:1", dead_letter_queue="orders"),
    "activemq": lambda: StompAdapter("stomp://127.0.0.1:1", dead_letter_destination="orders"),
    "activemq, in full": lambda: StompAdapter("stomp://127.0.0.1:1", dead_letter_destination="/queue/orders"),
    "kafka": lambda: KafkaAdapter("127.0.0.1:1", dead_letter_topic="orders"),
}


@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS)
def test_a_failing_message_would_come_back_without_end(adapter):
    registry = Registry()
    registry.consumer("orders", group="billing", checker=MemoryChecker())(lambda _: None)
    with pytest.raises(ConfigurationError, match="'orders' itself"):
        Worker(registry, adapter()).run()
