"""A broker of dramatiq with protected actors, and the workers that run them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import dramatiq
import sqlalchemy as sa
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import MAINTENANCE_SCALE, RedisBroker
from dramatiq.middleware import AsyncIO, CurrentMessage, GroupCallbacks, Middleware, TimeLimit
from dramatiq.rate_limits.backends import RedisBackend as Limits
from dramatiq.results import ResultFailure, ResultMissing, Results
from dramatiq.results.backends import RedisBackend
from sqlalchemy.orm import Session

from idempotent.adapters.dramatiq import Idempotency, idempotent_actor
from tests.adapters.rabbitmq.rabbit import Rabbit
from tests.adapters.shops import DEADLINE_S, SETTINGS, NoCodec, Notes, checker_of, kill, running


@dataclass(frozen=True)
class Settings(Notes):
    """Of a broker: its servers, and where its actors write down what they ran.

    Attributes:
        broker: URL of RabbitMQ or Redis.
        results: URL of Redis.
        url: of the store of keys.
        table: of the store of keys, or its prefix.
        lease_s: of its keys. A test that waits for no lease has one that does not end meanwhile.
    """

    broker: str
    results: str
    queue: str
    ran: str
    url: str
    table: str
    is_transactional: bool = False
    lease_s: float = 600.0


class Dies(Middleware):
    """Kills the worker between the end of an actor and all that dramatiq does afterwards."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def after_process_message(self, broker, message, *, result=None, exception=None):
        if message.actor_name == "charge" and self.settings.first("finished"):
            kill()


class Shop:
    """A broker with its actors.

    Args:
        settings: its servers.
        dies: its worker dies between the end of an actor and what follows; `yes` or empty.
    """

    def __init__(self, settings: Settings, dies: str = "") -> None:
        self.settings = settings
        self.broker: Any
        if settings.broker.startswith("redis"):
            # The messages of a worker that died are delivered again by the maintenance.
            often = {"maintenance_chance": MAINTENANCE_SCALE, "heartbeat_timeout": 3000}
            self.broker = RedisBroker(url=settings.broker, namespace=settings.queue, **often)
        else:
            self.broker = RabbitmqBroker(url=settings.broker)
        self.backend = RedisBackend(url=settings.results, namespace=f"{settings.queue}-results")
        limits = Limits(url=settings.results)
        (limit,) = (each for each in self.broker.middleware if isinstance(each, TimeLimit))
        limit.manager.interval = 0.1
        made = [Idempotency(), AsyncIO(), GroupCallbacks(limits), Results(backend=self.backend)]
        for each in [*made, *([Dies(settings)] if dies else [])]:
            self.broker.add_middleware(each)
        self.checker = checker_of(settings, settings.lease_s)
        for add in (add_actors, add_failures, add_deaths, add_followers):
            add(self)
        if settings.is_transactional:
            add_transactional(self)

    def declare(self, **options: Any) -> Any:
        options = {"store_results": True, "min_backoff": 10, "queue_name": self.settings.queue, **options}
        return idempotent_actor(checker=self.checker, group="tests", broker=self.broker, **options)

    def message(self, name: str, *args: Any, message_id: str | None = None, **options: Any) -> Any:
        kwargs = options.pop("kwargs", {})
        made = self.broker.get_actor(name).message_with_options(args=args, kwargs=kwargs, **options)
        return replace(made, message_id=message_id) if message_id else made

    def pipeline(self, *messages: Any) -> Any:
        return dramatiq.pipeline(messages, broker=self.broker)

    def send(self, name: str, *args: Any, **options: Any) -> Any:
        return self.broker.enqueue(self.message(name, *args, **options))

    def result(self, message: Any, timeout_s: float = DEADLINE_S) -> Any:
        """The result, which is then forgotten: that of the next copy is another one."""
        until = time.monotonic() + timeout_s
        while True:
            try:
                found = message.get_result(backend=self.backend)
            except ResultMissing:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)
            except ResultFailure:
                self.forget(message)
                raise
            else:
                self.forget(message)
                return found

    def forget(self, message: Any) -> None:
        self.backend.client.delete(self.backend.build_message_key(message))

    def dead(self) -> list[str]:
        """The ids of the messages in the dead-letter queue of the Redis broker."""
        found = self.broker.client.hvals(f"{self.settings.queue}:{self.settings.queue}.XQ.msgs")
        return [json.loads(each)["message_id"] for each in found]

    def close(self) -> None:
        self.checker.close()
        self.broker.close()
        self.backend.client.close()
        if self.settings.broker.startswith("amqp"):
            for suffix in ("", ".DQ", ".XQ"):
                Rabbit(self.settings.broker).delete(f"{self.settings.queue}{suffix}")


shop = Shop


def retries() -> int:
    message = CurrentMessage.get_current_message()
    assert message is not None
    return message.options.get("retries", 0)


def add_actors(shop: Shop) -> None:
    note = shop.settings.note

    @shop.declare(max_retries=1, on_failure="failed", retry_when=lambda retries, error: retries < 1)
    def charge(order, seconds=0.0):
        note(f"charge {order}")
        time.sleep(seconds)
        return [order, retries()]

    @shop.declare(key="order")
    def ship(*, order):
        note(f"ship {order}")
        return f"shipped {order}"

    @shop.declare()
    async def fetch(order: str) -> str:
        note(f"fetch {order}")
        return order

    @shop.declare()
    def outer(order):
        note(f"outer {order}")
        return [charge(order), ship(order=order)]


def add_failures(shop: Shop) -> None:
    note = shop.settings.note

    @shop.declare(codec=NoCodec())
    def count(order):
        note(f"count {order}")
        return 1

    @shop.declare(max_retries=1)
    def refuse(order):
        note(f"refuse {order}")
        raise ZeroDivisionError

    @shop.declare(max_retries=1)
    def again(order):
        note(f"again {order}")
        if not retries():
            raise dramatiq.Retry(delay=1)
        return retries()

    @shop.declare(max_retries=1, time_limit=300)
    def slow(order):
        note(f"slow {order}")
        while not retries():
            time.sleep(0.02)
        return "ended"

    @shop.declare(max_retries=1, notify_shutdown=True)
    def stopped(order):
        note(f"stopped {order}")
        while not retries():
            time.sleep(0.02)
        return "ended"


def add_deaths(shop: Shop) -> None:
    settings = shop.settings

    @shop.declare()
    def die(order):
        settings.note("die")
        if settings.first("died"):
            kill()
        return "lived"

    if not settings.is_transactional:

        @shop.declare(on_expired_lease="park")
        def park(order):
            settings.note("park")
            kill()


def add_followers(shop: Shop) -> None:
    note = shop.settings.note
    plain = {"broker": shop.broker, "queue_name": shop.settings.queue}

    @dramatiq.actor(store_results=True, **plain)
    def ended(value):
        note(f"ended {value}")
        return value

    @dramatiq.actor(**plain)
    def tail(value):
        note(f"tail {value}")

    @dramatiq.actor(**plain)
    def failed(message, error):
        note(f"failed {message['message_id']} {error['type']}")

    @dramatiq.actor(**plain)
    def grouped(order):
        note(f"grouped {order}")


def add_transactional(shop: Shop) -> None:
    settings = shop.settings
    insert = sa.text(f"INSERT INTO {settings.table}_effects (id) VALUES (:id)")

    @shop.declare()
    def book(order: str, session: Session, *, dies: bool = False) -> str:
        session.execute(insert, {"id": order})
        settings.note(f"book {order}")
        if dies and settings.first("died"):
            kill()
        return order

    @shop.declare()
    def rebook(order: str, session: Session) -> int:
        session.execute(insert, {"id": order})
        if not retries():
            raise dramatiq.Retry(delay=1)
        return retries()


def opened(settings: Settings) -> closing[Shop]:
    return closing(Shop(settings))


@contextmanager
def worker(settings: Settings, dies: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """The command `dramatiq`: a process with four threads, and its parent. Both end when the process is killed."""
    words = ["dramatiq", "tests.adapters.dramatiq_plugin.app:broker", "--processes=1", "--threads=4"]
    with running([*words, "--worker-shutdown-timeout=3000"], settings, dies) as process:
        yield process


__all__ = ["DEADLINE_S", "SETTINGS", "Settings", "opened", "replace", "shop", "worker"]
