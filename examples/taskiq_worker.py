"""A task of taskiq charges an order once, although it is sent three times; each has the result."""

import asyncio

from taskiq import InMemoryBroker

from idempotent.adapters.taskiq import idempotent_task
from idempotent.checkers import MemoryChecker

# Yours is a broker with acknowledgements, and several processes share a SqlChecker, RedisChecker or
# TransactionalSqlChecker.
broker = InMemoryBroker()
charged: list[str] = []


@idempotent_task(broker, checker=MemoryChecker(), group="shop", key="order", task_name="charge")
async def charge(order: str, cents: int) -> str:
    charged.append(order)
    return f"{order}: {cents}"


async def shop() -> None:
    for order in ("o-1", "o-1", "o-2", "o-1"):
        task = await charge.kiq(order, 500)
        print((await task.wait_result(timeout=10)).return_value)


asyncio.run(shop())
assert charged == ["o-1", "o-2"]
