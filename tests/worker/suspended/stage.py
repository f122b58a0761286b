"""A worker of plain handlers over a store, whose steps the test may hold."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from idempotent import Message, Outcome, Registry, Result
from idempotent.adapters import MemoryBroker
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.observe import Observer
from tests.support.hooks import answering
from tests.worker.running import SUBJECT, WAIT_S, Running, emptying, until


class Gate:
    """Where handlers, or the steps of a store, wait for the test.

    Attributes:
        waiting: what has come so far.
    """

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self._open = threading.Event()

    def wait(self, name: str = "") -> None:
        self.waiting.append(name)
        assert self._open.wait(WAIT_S)

    def until(self, *names: str) -> None:
        until(lambda: Counter(names) <= Counter(self.waiting))

    def open(self) -> None:
        self._open.set()


class Counting(Observer):
    """Counts outcomes, those of messages that are not settled yet too."""

    def __init__(self) -> None:
        self.outcomes: Counter[object] = Counter()

    def counted(self, consumer: str, what: object, count: int) -> None:
        self.outcomes[what] += count


class Crowd:
    """A worker with several threads.

    Attributes:
        effects: how often each handler ran.
        counting: what became of each delivery.
        results: what the worker settled, in this order.
    """

    def __init__(self, checker: AbstractIdempotentChecker, broker: MemoryBroker) -> None:
        self.counting = Counting()
        self.registry = Registry(observers=[self.counting])
        self.checker = checker
        self.effects: Counter[str] = Counter()
        self.results: list[tuple[str, Outcome]] = []
        self.gates: dict[str, Gate] = {}
        self._broker = broker
        self._lock = threading.Lock()
        self.consumer = self.registry.consumer(SUBJECT, checker=checker)(self.handle)

    def handle(self, message: Message) -> None:
        name = str(message.id)
        if name in self.gates:
            self.gates[name].wait(name)
        with self._lock:
            self.effects[name] += 1

    def run(self, concurrency: int, **options: Any) -> Running:
        worker = emptying(
            self.registry, self._broker, concurrency=concurrency, on_result=self._note, **options
        )
        return Running(worker)

    @property
    def settled(self) -> list[str]:
        return [name for name, _ in self.results]

    def _note(self, message: Message, result: Result) -> None:
        self.results.append((str(message.id), result.outcome))


@contextmanager
def completions_wait(checker: Any) -> Iterator[Gate]:
    """No completion reaches the store until the gate is open."""
    gate = Gate()

    def one(completion: Any) -> Any:
        gate.wait()
        return checker._complete(completion)

    def many(completions: Any) -> Any:
        gate.wait()
        return checker._complete_many(completions)

    with answering(checker, _complete=one, _complete_many=many):
        try:
            yield gate
        finally:
            gate.open()
