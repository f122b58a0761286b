"""A callback of aio-pika: each mail is sent once. RABBITMQ_URL=amqp://host python examples/aio_pika_service.py"""

import asyncio
import os

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from idempotent import Action, Message, consumer
from idempotent.checkers import SqlChecker
from idempotent.migrations import upgrade

upgrade("sqlite:///mail.db")


@consumer("mail", group="smtp", checker=SqlChecker("sqlite:///mail.db"), handler_timeout_s=30)
async def send(message: Message) -> None:
    print("sent", message.id, flush=True)


async def on_message(given: AbstractIncomingMessage) -> None:
    result = await send.process(
        Message("mail", given.body, id=given.message_id, headers=given.headers, raw=given)
    )
    if result.action is Action.ACK:
        await given.ack()
    elif result.action is Action.DEAD_LETTER:
        await given.reject(requeue=False)  # to the dead-letter exchange of the queue
    else:
        await asyncio.sleep(result.retry_after_s or 1)
        await given.nack(requeue=True)


async def main(url: str) -> None:
    async with await aio_pika.connect_robust(url) as connection, await connection.channel() as channel:
        await channel.set_qos(prefetch_count=100)
        await (await channel.get_queue("mail")).consume(on_message)
        await asyncio.Future()


url = os.environ.get("RABBITMQ_URL")
asyncio.run(main(url)) if url else print("RABBITMQ_URL is not set, so there is nothing to consume")
