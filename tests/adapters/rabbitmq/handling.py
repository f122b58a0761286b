"""A worker that fails at each message once, and writes who handled what: `python -m ... URL QUEUE FILE`."""

import os
import sys
import time
from pathlib import Path

from idempotent import Message, Registry, Worker
from idempotent.adapters.copies import ATTEMPT_HEADER
from idempotent.checkers import MemoryChecker
from idempotent.policy import Backoff
from tests.adapters.rabbitmq.rabbit import Rabbit

SOON = Backoff(initial_s=0.1, maximum_s=0.1)


def main(url: str, queue: str, file: str) -> None:
    registry = Registry()

    @registry.consumer(queue, group="g", checker=MemoryChecker(), backoff=SOON)
    def handle(message: Message) -> None:
        time.sleep(0.01)
        with Path(file).open("a", encoding="utf-8") as lines:
            lines.write(f"{os.getpid()} {message.id}\n")
        if ATTEMPT_HEADER not in message.raw.properties.headers:
            raise ValueError("once")

    Worker(registry, Rabbit(url).adapter(prefetch=5), concurrency=2, gc_interval_s=None).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
