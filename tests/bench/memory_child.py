"""The worker whose memory is watched: endless messages in, a line of JSON every so many out."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Annotated

import psutil
import typer

from idempotent import Consumer, Message, Registry, Result, Worker
from idempotent.adapters.base import Adapter, Delivery
from idempotent.checkers import RedisChecker

SUBJECT = "orders"
# Keys that are to be remembered for long fill the server, which is not what is watched.
RETENTION_S = 60.0


class Endless(Adapter):
    """Makes its messages, and forgets those that are settled.

    Args:
        count: how many.
        every: after so many settled ones it says how much memory this process has.
    """

    def __init__(self, count: int, every: int) -> None:
        self._left = count
        self._every = every
        self._made = 0
        self._settled = 0
        self._open: set[int] = set()
        self._process = psutil.Process()

    def open(self, consumers: Sequence[Consumer]) -> None:
        pass

    def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
        numbers = range(self._made, self._made + min(limit, self._left))
        self._made += len(numbers)
        self._left -= len(numbers)
        self._open.update(numbers)
        return [Delivery(Message(SUBJECT, b"x" * 100, id=f"order-{number}"), number) for number in numbers]

    def _acknowledge(self, delivery: Delivery, result: Result) -> bool:
        self._open.remove(delivery.token)
        self._settled += 1
        if self._settled % self._every == 0:
            self._say()
        return True

    def _delay(self, delivery: Delivery, after_s: float) -> bool:
        raise AssertionError("no message of this source fails")

    def _dead_letter(self, delivery: Delivery, result: Result) -> bool:
        raise AssertionError("no message of this source fails")

    def _give_back(self, delivery: Delivery) -> bool:
        self._open.remove(delivery.token)
        return True

    def publish(self, message: Message) -> None:
        raise AssertionError("no message of this source fails, so none has a dead letter")

    @property
    def finished(self) -> bool:
        return not self._left and not self._open

    def close(self) -> None:
        pass

    def _say(self) -> None:
        sample = {
            "messages": self._settled,
            "resident_bytes": self._process.memory_info().rss,
            "descriptors": self._process.num_fds(),
        }
        os.write(1, json.dumps(sample).encode() + b"\n")


def main(
    url: str, count: int, every: int, batch: int, leak: Annotated[bool, typer.Option("--leak")] = False
) -> None:
    """Consume them all."""
    registry = Registry()
    kept: list[Message] = []

    @registry.consumer(SUBJECT, checker=RedisChecker(url, retention_s=RETENTION_S))
    def handle(message: Message) -> None:
        if leak:
            kept.append(message)

    Worker(registry, Endless(count, every), batch_size=batch).run()


if __name__ == "__main__":
    typer.run(main)
