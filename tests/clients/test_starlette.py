"""Starlette and uvicorn: a worker in the lifespan of an application, which SIGTERM ends."""

import signal
import subprocess
import sys
from collections import Counter

import pika
import pytest

from tests.support.tables import TablePool

PROGRAM = """
import asyncio, os, sys, time
from contextlib import asynccontextmanager, suppress

import anyio, sqlalchemy as sa, uvicorn
from starlette.applications import Starlette

from idempotent import Registry, Worker
from idempotent.adapters.rabbitmq import RabbitMqAdapter
from idempotent.checkers import SqlChecker

rabbit, database, table, queue, how, kind = sys.argv[1:]
registry = Registry()
checker = SqlChecker(sa.create_engine(database), table=table)

def say(*words):
    os.write(1, (" ".join(words) + "\\n").encode())  # whole lines, whichever thread

def plain(message):
    say("began", message.id)
    time.sleep(0.5)
    say("booked", message.id)

async def awaits(message):
    say("began", message.id)
    await asyncio.sleep(0.5)
    say("booked", message.id)

registry.consumer(queue, checker=checker)(plain if kind == "plain" else awaits)
worker = Worker(registry, RabbitMqAdapter(rabbit), concurrency=2)

@asynccontextmanager
async def in_group(app):
    async with anyio.create_task_group() as group:
        group.start_soon(worker.serve)
        yield
        group.cancel_scope.cancel()

@asynccontextmanager
async def in_task(app):
    serving = asyncio.create_task(worker.serve())
    yield
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving

lifespan = {"group": in_group, "task": in_task}[how]
uvicorn.run(Starlette(lifespan=lifespan), host="127.0.0.1", port=0, lifespan="on", log_level="error")
"""


def publish(rabbit, queue, ids):
    with rabbit.channel() as channel:
        for name in ids:
            channel.basic_publish("", queue, b"", pika.BasicProperties(message_id=name))


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("group", "plain"),
        pytest.param("group", "async", marks=pytest.mark.slow),
        pytest.param("task", "plain", marks=pytest.mark.slow),
        pytest.param("task", "async", marks=pytest.mark.slow),
    ],
)
def test_sigterm_drains_the_worker_and_no_effect_happens_twice(
    rabbit, queue, postgres_tables: TablePool, how: str, kind: str
):
    ids = [str(number) for number in range(3)]
    publish(rabbit, queue, ids)
    said: list[str] = []
    with postgres_tables.reused() as tables:
        arguments = [rabbit.url, postgres_tables.url, tables.name, queue, how, kind]
        while sum(line.startswith("booked") for line in said) < len(ids):
            command = [sys.executable, "-W", "error", "-c", PROGRAM, *arguments]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    said.append(line)
                    if line.startswith("began"):
                        break
                process.terminate()
                output = (
                    process.stdout.read()
                )  # what `communicate` would leave in the buffer of the lines before, too
            assert process.returncode in (0, -signal.SIGTERM)  # uvicorn ends by the signal that it has caught
            said += output.splitlines()
            words = Counter(line.split()[0] for line in said)
            assert words["began"] == words["booked"]  # what had begun was finished
    assert Counter(line.split()[1] for line in said if line.startswith("booked")) == dict.fromkeys(ids, 1)
