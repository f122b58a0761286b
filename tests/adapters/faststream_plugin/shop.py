"""An application of FastStream with protected subscribers, and the processes that run it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pydantic
import sqlalchemy as sa
from faststream import AckPolicy, BaseMiddleware, Depends, FastStream, exceptions
from faststream.confluent import KafkaBroker
from faststream.confluent import KafkaRouter as Topics
from faststream.rabbit import RabbitBroker, RabbitQueue
from faststream.rabbit import RabbitRouter as Queues
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from idempotent.adapters.faststream import IdempotentMiddleware, session
from idempotent.testing.adapter_contract import until
from tests.adapters import shops
from tests.adapters.shops import SETTINGS, Notes, kill, running

LEASE_S = 3.0
GROUP = "tests"
QUEUES = ("book", "note", "refuse", "answer", "nack", "park")


@dataclass(frozen=True)
class Settings(Notes):
    """Of an application: its servers, and where it writes down what it ran.

    Attributes:
        queue: what its queues or topics begin with.
        url: of the store of keys.
        table: of the store of keys, or its prefix.
        lease_s: seconds for which a process that was killed keeps its keys.
        dies: the point at which the first process is killed: `handler`, `published`, `acknowledged`.
    """

    broker: str
    queue: str
    ran: str
    url: str
    table: str
    is_transactional: bool = False
    hold_s: float = 0.3
    lease_s: float = LEASE_S
    dies: str = ""

    def reach(self, point: str) -> None:
        """Die at the named point, once."""
        if point == self.dies and self.first(point):
            kill()


class Order(pydantic.BaseModel):
    order: str
    seconds: float = 0.0


class Receipt(pydantic.BaseModel):
    order: str
    clerk: str


def checker_of(settings: Settings) -> Any:
    return shops.checker_of(settings, settings.lease_s, create_async_engine)


def shop(settings: Settings) -> FastStream:
    """The application."""
    is_kafka = not settings.broker.startswith("amqp")
    middleware = IdempotentMiddleware(checker_of(settings), group=GROUP, hold_s=settings.hold_s)
    # Entered after ours: it publishes before, and ends before.
    middlewares: Any = [middleware, points_of(settings)]
    broker: Any
    if is_kafka:
        # It stops at once, also while it holds a record.
        broker = KafkaBroker(settings.broker, graceful_timeout=0.5)
        router = Topics(middlewares=[*middlewares, receipts_of(settings)])
    else:
        broker, router = RabbitBroker(settings.broker), Queues(middlewares=middlewares)
        add_others(router, settings)
        if not settings.is_transactional:
            parking = IdempotentMiddleware(checker_of(settings), group=GROUP, on_expired_lease="park")
            add_park(broker, settings, parking)
    add_book(router, settings)
    broker.include_router(router)
    app = FastStream(broker)
    app.on_startup(lambda: middleware.check(broker))
    app.after_startup(lambda: settings.note("started"))
    return app


def points_of(settings: Settings) -> type[BaseMiddleware[Any, Any]]:
    """A middleware that dies at the points between the completion of a message and its acknowledgement."""

    class Points(BaseMiddleware[Any, Any]):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            settings.reach("published")
            return await call_next(cmd)

        async def after_processed(self, *_: Any) -> bool:
            settings.reach("acknowledged")
            return False

    return Points


def receipts_of(settings: Settings) -> type[BaseMiddleware[Any, Any]]:
    """A middleware that notes the position of each record that comes."""

    class Receipts(BaseMiddleware[Any, Any]):
        async def on_receive(self) -> None:
            if self.msg is not None:
                settings.note(f"received {self.msg.partition()}/{self.msg.offset()}")

    return Receipts


def subscriber_of(router: Any, settings: Settings, name: str, **options: Any) -> Any:
    """A subscriber; what a queue rejects goes to the dead letters."""
    name = f"{settings.queue}.{name}"
    if isinstance(router, Topics):
        policy = AckPolicy.NACK_ON_ERROR
        own: Any = {"auto_offset_reset": "earliest", "session_timeout_ms": 6000}
        return router.subscriber(name, group_id=f"group-{settings.queue}", ack_policy=policy, **own)
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{settings.queue}.dead"}
    return router.subscriber(RabbitQueue(name, durable=True, arguments=dead), **options)


def add_book(router: Any, settings: Settings) -> None:
    insert = sa.text(f"INSERT INTO {settings.table}_effects (id) VALUES (:id)")

    async def clerk() -> str:
        return "alice"

    async def done(order: Order) -> None:
        settings.note(f"book {order.order}")
        settings.reach("handler")
        await asyncio.sleep(order.seconds)

    async def book(order: Order, name: str = Depends(clerk)) -> Receipt:
        await done(order)
        return Receipt(order=order.order, clerk=name)

    async def insert_and_book(
        order: Order,
        name: str = Depends(clerk),
        session: AsyncSession = Depends(session),  # noqa: B008 - how FastStream is told
    ) -> Receipt:
        await session.execute(insert, {"id": order.order})
        return await book(order, name)

    handler: Any = insert_and_book if settings.is_transactional else book
    subscriber_of(router, settings, "book")(router.publisher(f"{settings.queue}.out")(handler))


def add_others(router: Any, settings: Settings) -> None:
    @subscriber_of(router, settings, "note")
    def note(body: str) -> None:
        settings.note(f"note {body}")

    @subscriber_of(router, settings, "refuse")
    async def refuse(body: str) -> None:
        settings.note(f"refuse {body}")
        raise ZeroDivisionError

    @subscriber_of(router, settings, "answer")
    @router.publisher(f"{settings.queue}.out")
    async def answer(body: str) -> str:
        settings.note(f"answer {body}")
        raise getattr(exceptions, body.split(maxsplit=1)[0])

    @subscriber_of(router, settings, "nack", ack_policy=AckPolicy.NACK_ON_ERROR)
    @router.publisher(f"{settings.queue}.out")
    async def nack(body: str) -> str:
        settings.note(f"nack {body}")
        if settings.first(body):
            raise OSError
        return body


def add_park(broker: Any, settings: Settings, middleware: IdempotentMiddleware) -> None:
    router = Queues(middlewares=[middleware])

    @subscriber_of(router, settings, "park")
    async def park(body: str) -> None:
        settings.note(f"park {body}")
        kill()

    broker.include_router(router)


@contextmanager
def worker(settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs the application, which has started."""
    starts = settings.lines().count("started")
    with running(["tests.adapters.faststream_plugin.shop"], settings) as process:
        until(lambda: settings.lines().count("started") > starts or process.poll() is not None, "a start")
        yield process


__all__ = ["GROUP", "LEASE_S", "QUEUES", "Settings", "checker_of", "replace", "shop", "worker"]

if __name__ == "__main__":
    asyncio.run(shop(Settings(**json.loads(os.environ[SETTINGS]))).run())
