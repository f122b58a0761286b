"""An application of Celery with protected tasks, and the workers that run it."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from celery import Celery
from celery.exceptions import Ignore
from celery.signals import before_task_publish
from sqlalchemy.orm import Session

from idempotent.adapters.celery import IdempotentTask, idempotent_task
from tests.adapters.shops import SETTINGS, NoCodec, Notes, checker_of, kill, running

LEASE_S = 3.0


@dataclass(frozen=True)
class Settings(Notes):
    """Of an application: its servers, and where it writes down what it ran.

    Attributes:
        url: of the store of keys.
        table: of the store of keys, or its prefix.
        visibility_s: after which Redis delivers a message again.
    """

    broker: str
    backend: str
    queue: str
    ran: str
    url: str
    table: str
    visibility_s: float = 3600
    is_transactional: bool = False


def shop(settings: Settings) -> Celery:
    """The application, with a `checker`."""
    app = Celery("shop", broker=settings.broker, backend=settings.backend, set_as_current=False)
    app.conf.update(
        task_default_queue=settings.queue,
        worker_prefetch_multiplier=1,
        broker_connection_retry_on_startup=True,
    )
    if settings.broker.startswith("redis"):
        app.conf.broker_transport_options = {
            "visibility_timeout": settings.visibility_s,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "global_keyprefix": settings.queue,
        }
    app.settings, app.checker = settings, checker_of(settings, LEASE_S)
    add_tasks(app)
    add_deaths(app)
    if settings.is_transactional:
        add_transactional(app)
    return app


def protected(app: Celery, name: str, **options: Any) -> Any:
    return idempotent_task(app, checker=app.checker, group="tests", name=name, shared=False, **options)


def add_tasks(app: Celery) -> None:
    note = app.settings.note

    @protected(app, "charge", bind=True)
    def charge(self, order, seconds=0.0):
        note(f"charge {order}")
        time.sleep(seconds)
        return [order, self.request.retries]

    @protected(app, "ship", key="order")
    def ship(*, order):
        note(f"ship {order}")
        return f"shipped {order}"

    @protected(app, "count", codec=NoCodec())
    def count(order):
        note(f"count {order}")
        return 1

    @protected(app, "refuse")
    def refuse(order):
        note(f"refuse {order}")
        raise ZeroDivisionError

    @protected(app, "again", bind=True, autoretry_for=(OSError,), default_retry_delay=0, max_retries=1)
    def again(self, order):
        note(f"again {order}")
        if not self.request.retries:
            raise OSError
        return self.request.retries

    @protected(app, "stubborn", bind=True, autoretry_for=(OSError,), default_retry_delay=4, max_retries=2)
    def stubborn(self, order):
        note(f"stubborn {order} {self.request.retries}")
        if self.request.retries < self.max_retries:
            raise OSError
        return order

    @protected(app, "ignore")
    def ignore(order):
        note(f"ignore {order}")
        raise Ignore

    @app.task(name="plain", shared=False, acks_late=True, reject_on_worker_lost=True)
    def plain(order, seconds=0.0):
        note(f"plain {order}")
        time.sleep(seconds)

    @app.task(name="tail", shared=False)
    def tail(value):
        note(f"tail {value}")


def add_deaths(app: Celery) -> None:
    settings = app.settings

    @protected(app, "die")
    def die(whole):
        settings.note("die")
        if settings.first("died"):
            kill(*parent(whole))
        return "lived"

    if not settings.is_transactional:

        @protected(app, "park", on_expired_lease="park")
        def park():
            settings.note("park")
            kill()

    def on_publish(sender=None, headers=None, **_):
        """Note it, or die between the completion of the first task and its follow-up."""
        settings.note(f"sent {headers['id']}")
        dies = os.environ.get("DIES")
        if sender == "tail" and dies in ("child", "whole") and settings.first("published"):
            kill(*parent(dies == "whole"))

    before_task_publish.connect(on_publish, weak=False)
    send = app.amqp.send_task_message

    def send_unless_away(producer, name, message, **options):
        """What a signal raises, Celery only logs: here the broker does not take the first message."""
        if name == "charge" and os.environ.get("DIES") == "unsent" and settings.first("unsent"):
            raise ConnectionError
        return send(producer, name, message, **options)

    app.amqp.send_task_message = send_unless_away


def add_transactional(app: Celery) -> None:
    settings = app.settings
    insert = sa.text(f"INSERT INTO {settings.table}_effects (id) VALUES (:id)")

    @app.task(name="book", base=IdempotentTask, checker=app.checker, group="tests", shared=False)
    def book(order: str, session: Session, *, dies: bool = False) -> str:
        session.execute(insert, {"id": order})
        settings.note(f"book {order}")
        if dies and settings.first("died"):
            kill()
        return order

    @app.task(name="rebook", base=IdempotentTask, bind=True, checker=app.checker, group="tests", shared=False)
    def rebook(self, order: str, session: Session) -> int:
        session.execute(insert, {"id": order})
        if not self.request.retries:
            raise self.retry(countdown=0)
        return self.request.retries


def parent(whole: bool) -> list[int]:
    return [os.getppid()] if whole else []


@contextmanager
def opened(settings: Settings) -> Iterator[Celery]:
    with shop(settings) as app:
        yield app
        app.checker.close()
        app.backend.result_consumer.stop()
        # A result that is deleted later would connect again to unsubscribe.
        app.backend.result_consumer.subscribed_to.clear()
        app.backend.client.connection_pool.disconnect()


@contextmanager
def worker(settings: Settings, pool: str = "prefork", dies: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """A worker with two processes or threads.

    Args:
        settings: of its application.
        pool: what runs its tasks.
        dies: before the follow-up: `child` or `whole`; `unsent`: the first task that it sends again is not sent.
    """
    words = [
        "celery",
        "-A",
        "tests.adapters.celery_plugin.app",
        "worker",
        f"--pool={pool}",
        "--concurrency=2",
    ]
    # Two nodes of one name cannot share a virtual host of RabbitMQ, and tests run side by side.
    alone = ["--without-gossip", "--without-mingle", "--without-heartbeat", f"-n{secrets.token_hex(4)}@test"]
    with running([*words, *alone, "--loglevel=WARNING"], settings, dies) as process:
        yield process


__all__ = ["LEASE_S", "SETTINGS", "Settings", "opened", "replace", "shop", "worker"]
