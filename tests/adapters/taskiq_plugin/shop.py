"""A broker of taskiq with protected tasks, and the workers that run them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from taskiq import Context, SimpleRetryMiddleware, TaskiqDepends, TaskiqMiddleware
from taskiq.kicker import AsyncKicker
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from idempotent.adapters.taskiq import idempotent_task
from tests.adapters.shops import DEADLINE_S, SETTINGS, NoCodec, Notes, checker_of, kill, running


@dataclass(frozen=True)
class Settings(Notes):
    """Of a broker: its servers, and where its tasks write down what they ran.

    Attributes:
        redis: of the broker and the results.
        url: of the store of keys.
        table: of the store of keys, or its prefix.
        lease_s: of its keys. A test that waits for no lease has one that does not end meanwhile.
        idle_s: after which a message that nobody has acknowledged is delivered again.
    """

    redis: str
    queue: str
    ran: str
    url: str
    table: str
    is_transactional: bool = False
    lease_s: float = 600.0
    idle_s: float = 600.0


@dataclass
class Receipt:
    order: str
    at: datetime


class Follows(TaskiqMiddleware):
    """What follows a task: a line. The worker may die before it."""

    def __init__(self, settings: Settings, *, dies: bool) -> None:
        super().__init__()
        self.settings = settings
        self.dies = dies

    def post_execute(self, message, result):
        if self.dies and message.task_name == "charge" and self.settings.first("finished"):
            kill()

    def post_save(self, message, result):
        self.settings.note(f"saved {message.task_id}")


class Shop:
    """A broker with its tasks.

    Args:
        settings: its servers.
        dies: its worker dies between the end of a task and what follows; `yes` or empty.
    """

    def __init__(self, settings: Settings, dies: str = "") -> None:
        self.settings = settings
        self.runner = asyncio.Runner()
        self.backend: Any = RedisAsyncResultBackend(settings.redis, prefix_str=settings.queue)
        broker = RedisStreamBroker(
            settings.redis,
            queue_name=settings.queue,
            consumer_id="0-0",
            xread_block=200,
            idle_timeout=int(settings.idle_s * 1000),
            unacknowledged_lock_timeout=2.0,
        )
        follows = Follows(settings, dies=bool(dies))
        self.broker: Any = broker.with_result_backend(self.backend).with_middlewares(
            SimpleRetryMiddleware(default_retry_count=2), follows
        )
        self.checker = checker_of(settings, settings.lease_s, create_async_engine)
        if settings.is_transactional:
            add_transactional(self)
        else:
            for add in (add_tasks, add_failures, add_deaths):
                add(self)

    def declare(self, name: str, **options: Any) -> Any:
        return idempotent_task(self.broker, checker=self.checker, group="tests", task_name=name, **options)

    def run(self, waits: Any) -> Any:
        return self.runner.run(waits)

    def send(self, name: str, *args: Any, task_id: str | None = None, **kwargs: Any) -> str:
        """Send a task; returns its id."""
        return str(self.run(self._send(name, args, kwargs, task_id)))

    async def _send(self, name: str, args: Any, kwargs: Any, task_id: str | None) -> str:
        kicker: Any = AsyncKicker(name, self.broker, dict(self.broker.find_task(name).labels))
        if task_id:
            kicker = kicker.with_task_id(task_id)
        return str((await kicker.kiq(*args, **kwargs)).task_id)

    def is_ready(self, task_id: str) -> bool:
        return bool(self.run(self.backend.is_result_ready(task_id)))

    def result(self, task_id: str, timeout_s: float = DEADLINE_S) -> Any:
        """The value, or the name of the error. It is forgotten: that of the next copy is another one.

        A stream delivers what nobody has acknowledged behind a new message only, so others are sent meanwhile.
        """
        until = time.monotonic() + timeout_s
        while not self.is_ready(task_id):
            if time.monotonic() > until:
                raise TimeoutError
            time.sleep(0.1)
            if self.settings.idle_s < DEADLINE_S:
                self.send("nudge")
        found = self.run(self.backend.get_result(task_id))
        return type(found.error).__name__ if found.is_err else found.return_value

    def close(self) -> None:
        self.run(self.broker.shutdown())
        self.checker.close()
        self.runner.close()


def add_tasks(shop: Shop) -> None:
    note = shop.settings.note

    def suffix() -> str:
        return "!"

    @shop.declare("charge", retry_on_error=True)
    async def charge(
        order: str,
        seconds: float = 0.0,
        *,
        context: Annotated[Context, TaskiqDepends()],
        end: str = TaskiqDepends(suffix),
    ) -> list[Any]:
        note(f"charge {order}")
        await asyncio.sleep(seconds)
        return [f"{order}{end}", context.message.labels.get("_retries", 0)]

    @shop.declare("pack")
    def pack(order: str, seconds: float = 0.0, end: str = TaskiqDepends(suffix)) -> str:
        note(f"pack {order}")
        time.sleep(seconds)
        return f"{order}{end}"

    @shop.declare("ship", key="order", retry_on_error=True)
    async def ship(at: datetime, *, order: str | None) -> Receipt:
        note(f"ship {order}")
        return Receipt(str(order), at)

    @shop.broker.task("plain")
    async def plain(order: str, seconds: float = 0.0) -> None:
        note(f"plain {order}")
        await asyncio.sleep(seconds)

    @shop.broker.task("nudge")
    async def nudge() -> None: ...


def add_failures(shop: Shop) -> None:
    note = shop.settings.note

    @shop.declare("count", codec=NoCodec(), key=lambda order: order, retry_on_error=True)
    def count(order):
        note(f"count {order}")
        return 1

    @shop.declare("refuse", retry_on_error=True)
    async def refuse(order):
        note(f"refuse {order}")
        raise ZeroDivisionError

    @shop.declare("again")
    async def again(order, context: Annotated[Context, TaskiqDepends()]):
        note(f"again {order}")
        if not context.message.labels.get("X-Taskiq-requeue"):
            await context.requeue()
        return "ended"

    @shop.declare("reject")
    def reject(order, context: Annotated[Context, TaskiqDepends()]):
        note(f"reject {order}")
        context.reject()

    @shop.declare("slow", timeout=0.3, retry_on_error=True)
    async def slow(order, context: Annotated[Context, TaskiqDepends()]):
        note(f"slow {order}")
        if not context.message.labels.get("_retries"):
            await asyncio.sleep(DEADLINE_S)
        return "ended"

    @shop.declare("finish", timeout=0.3, retry_on_error=True, on_cancel="finish")
    async def finish(order):
        note(f"finish {order}")
        await asyncio.sleep(1)
        return "ended"


def add_deaths(shop: Shop) -> None:
    settings = shop.settings

    @shop.declare("die")
    async def die():
        settings.note("die")
        if settings.first("died"):
            kill()
        return "lived"

    @shop.declare("park", on_expired_lease="park")
    async def park():
        settings.note("park")
        kill()


def add_transactional(shop: Shop) -> None:
    settings = shop.settings
    insert = sa.text(f"INSERT INTO {settings.table}_effects (id) VALUES (:id)")

    @shop.declare("book")
    async def book(order: str, session: AsyncSession, *, dies: bool = False) -> str:
        await session.execute(insert, {"id": order})
        settings.note(f"book {order}")
        if dies and settings.first("died"):
            kill()
        return order

    @shop.broker.task("nudge")
    async def nudge() -> None: ...


def opened(settings: Settings) -> closing[Shop]:
    return closing(Shop(settings))


@contextmanager
def worker(settings: Settings, dies: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """The command `taskiq worker`: one process, and its parent, which starts another one when it dies."""
    words = ["taskiq", "worker", "tests.adapters.taskiq_plugin.app:broker", "--workers=1"]
    words += ["--log-level=WARNING", "--wait-tasks-timeout=1", "--shutdown-timeout=2"]
    with running(words, settings, dies, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


__all__ = ["DEADLINE_S", "SETTINGS", "Receipt", "Settings", "Shop", "opened", "worker"]
