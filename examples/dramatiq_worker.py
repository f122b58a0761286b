"""An actor of dramatiq charges an order once, although its message is delivered three times."""

import dramatiq
from dramatiq.brokers.stub import StubBroker

from idempotent.adapters.dramatiq import Idempotency, idempotent_actor
from idempotent.checkers import MemoryChecker

# Yours is a RabbitmqBroker or a RedisBroker, and several processes share a SqlChecker, RedisChecker or
# TransactionalSqlChecker.
broker = StubBroker()
broker.add_middleware(Idempotency())
charged: list[str] = []


@idempotent_actor(checker=MemoryChecker(), group="shop", key="order", broker=broker)
def charge(order: str, cents: int) -> None:
    charged.append(order)
    print(f"charged {order}: {cents}")


worker = dramatiq.Worker(broker, worker_timeout=100)
worker.start()
for order in ("o-1", "o-1", "o-2", "o-1"):
    charge.send(order, 500)
broker.join(charge.queue_name)
worker.join()
worker.stop()
assert sorted(charged) == ["o-1", "o-2"]
