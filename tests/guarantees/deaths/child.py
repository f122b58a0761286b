"""A worker process of a scenario: the scenario is its broker, over two pipes."""

import os
import random
import signal
import threading
import time
from typing import Any

from sqlalchemy import text

from idempotent import Backoff, Message, Registry, Worker
from idempotent.adapters import MemoryAdapter, MemoryBroker
from idempotent.checkers.urls import checker_from_url

SUBJECT = "orders"
BACKOFF = Backoff(initial_s=0.05, maximum_s=0.05)


class GivenBroker(MemoryBroker):
    """Delivers again what the scenario has delivered to another process before."""

    def take(self, *args: Any) -> list[Any]:
        copies = super().take(*args)
        for copy in copies:
            copy.seen = copy.seen or copy.message.redelivered
        return copies


def work(plan: Any, given: int, told: int) -> None:
    """Process what comes on the pipe `given`; write each final outcome to the pipe `told`."""
    registry, broker = Registry(), GivenBroker()
    checker = checker_from_url(plan.checker, **plan.options)

    def handle(message: Message) -> None:
        time.sleep(random.Random(str(message.id)).uniform(0, plan.slow_s))
        if str(message.id).startswith("killer"):
            os.kill(os.getpid(), signal.SIGKILL)

    options = {
        "max_attempts": plan.max_attempts,
        "max_deaths": plan.max_deaths,
        "backoff": BACKOFF,
        "checker": checker,
    }
    if plan.effects:
        from sqlalchemy.orm import Session

        @registry.consumer(SUBJECT, **options)
        def consume(message: Message, session: Session) -> None:
            session.execute(text(f"INSERT INTO {plan.effects} VALUES (:id)"), {"id": message.id})
            handle(message)
    else:
        registry.consumer(SUBJECT, **options)(handle)

    def tell(message: Message, result: Any) -> None:
        os.write(told, f"{message.id} {result.outcome.value}\n".encode())

    def feed() -> None:
        with os.fdopen(given) as lines:
            for line in lines:
                name, redelivered = line.split()
                broker.publish(Message(SUBJECT, b"", id=name, redelivered=redelivered == "again"))

    threading.Thread(target=feed, daemon=True).start()
    Worker(
        registry,
        MemoryAdapter(broker),
        concurrency=plan.concurrency,
        batch_size=plan.batch_size,
        drain_timeout_s=plan.drain_s,
        gc_interval_s=None,
        on_result=tell,
    ).run()
