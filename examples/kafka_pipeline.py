"""From topic to topic: one invoice for each paid order, whatever is killed. Ctrl-C or SIGTERM ends it.

KAFKA_BOOTSTRAP=host:9092 python examples/kafka_pipeline.py
"""

import os
import sys

from idempotent import Message, Registry, Worker
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.checkers import AttemptChecker

registry = Registry()


# Kafka's transaction records which orders are done, so the checker only counts attempts.
@registry.consumer("orders.paid", group="invoicing", checker=AttemptChecker(), max_attempts=5)
def invoice(message: Message) -> Message:
    return Message("invoices", b"invoice for order %d" % message.json()["order"])


if "KAFKA_BOOTSTRAP" not in os.environ:
    print("KAFKA_BOOTSTRAP is not set, so there is nothing to consume")
    sys.exit()
# A reader of the invoices with isolation.level=read_committed sees each once.
adapter = KafkaAdapter(
    os.environ["KAFKA_BOOTSTRAP"], semantics="exactly_once", max_in_flight_per_partition=100
)
print(Worker(registry, adapter, batch_size=100).run())
