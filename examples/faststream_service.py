"""A service of FastStream: one row and one receipt for each order, however often it is delivered. Ctrl-C ends it.

Set RABBITMQ_URL (amqp://user:password@host) and DATABASE_URL (postgresql+psycopg://user@host/shop).
"""

import asyncio
import os
import sys

from faststream import Depends, FastStream
from faststream.rabbit import RabbitBroker, RabbitQueue
from pydantic import BaseModel
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from idempotent.adapters.faststream import IdempotentMiddleware, session
from idempotent.checkers import TransactionalSqlChecker
from idempotent.migrations import upgrade

if not {"RABBITMQ_URL", "DATABASE_URL"} <= os.environ.keys():
    print("RABBITMQ_URL and DATABASE_URL are not set, so there is nothing to consume")
    sys.exit()

DATABASE = os.environ["DATABASE_URL"]
middleware = IdempotentMiddleware(TransactionalSqlChecker(create_async_engine(DATABASE)), group="billing")
broker = RabbitBroker(os.environ["RABBITMQ_URL"], middlewares=[middleware])
# Refuses to start with a subscriber that the middleware cannot protect.
app = FastStream(broker, on_startup=[lambda: middleware.check(broker)])
# What cannot be handled waits where a person finds it.
orders = RabbitQueue(
    "orders",
    durable=True,
    arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dead"},
)


class Order(BaseModel):
    number: str
    cents: int


class Receipt(BaseModel):
    number: str
    paid: int


@broker.subscriber(orders)
@broker.publisher("receipts", persist=True)
async def book(order: Order, session: AsyncSession = Depends(session)) -> Receipt:  # noqa: B008 - FastStream's way
    # The row and the key of the message are committed together, and the receipt is stored with them.
    await session.execute(text("INSERT INTO bookings VALUES (:number, :cents)"), order.model_dump())
    print(f"booked {order.cents} cents for {order.number}", flush=True)
    return Receipt(number=order.number, paid=order.cents)


@app.on_startup
async def declare() -> None:
    await broker.connect()
    for name in ("receipts", "orders.dead"):
        await broker.declare_queue(RabbitQueue(name, durable=True))


upgrade(DATABASE)
with create_engine(DATABASE).begin() as connection:
    connection.execute(text("CREATE TABLE IF NOT EXISTS bookings (number TEXT, cents INTEGER)"))
asyncio.run(app.run())
