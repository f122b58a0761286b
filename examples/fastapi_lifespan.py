"""A worker inside a web application, as in `FastAPI(lifespan=lifespan)`: its handlers are tasks of the same loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from idempotent import Message, Registry, Worker
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker

registry = Registry()
broker = MemoryBroker(seed=7, duplicate_rate=0.5)
greeted: asyncio.Queue[str] = asyncio.Queue()


@registry.consumer("users.new", group="greeting", checker=MemoryChecker(), handler_timeout_s=10)
async def greet(message: Message) -> None:
    await asyncio.sleep(0.01)  # a request to another service
    greeted.put_nowait(str(message.id))


@asynccontextmanager
async def lifespan(_: object) -> AsyncIterator[None]:
    serving = asyncio.create_task(Worker(registry, MemoryAdapter(broker), concurrency=100).serve())
    try:
        yield
    finally:
        serving.cancel()  # it receives nothing more, and settles what runs
        with suppress(asyncio.CancelledError):
            await serving  # raises what ended it earlier


async def application() -> list[str]:
    async with lifespan("app"):
        for user in range(50):
            broker.publish(Message("users.new", id=f"user-{user}"))
        return [await greeted.get() for _ in range(50)]


users = asyncio.run(application())
print(f"{len(users)} users greeted, and none twice")
assert len(set(users)) == 50
