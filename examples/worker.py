"""A worker over an in-process broker that duplicates, reorders and redelivers messages, like real brokers."""

from idempotent import Message, Registry, Worker
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker

registry = Registry()
stock = {"apples": 100}


@registry.consumer("orders", group="warehouse", checker=MemoryChecker())
def take(message: Message) -> None:
    stock["apples"] -= message.json()["apples"]


broker = MemoryBroker(seed=7, duplicate_rate=0.3, reorder_window=5)
for order in range(20):
    broker.publish(Message("orders", b'{"apples": 2}', id=f"order-{order}"))
summary = Worker(registry, MemoryAdapter(broker, until_empty=True), concurrency=4).run()
print(summary)
assert stock["apples"] == 60
