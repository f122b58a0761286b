"""A store, a checker over it, and consumers that do what the bodies of their messages say."""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest
from sqlalchemy.orm import Session

from idempotent import Message, Registry
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.consumer import AsyncConsumer, Consumer
from tests.support.awaited import Awaited, as_async
from tests.support.stores import ALL, ASYNC, SQL, Store, open_store


@dataclass
class Shop:
    """A store, one checker over it, and consumers whose handlers do what a message's body says."""

    store: Store
    mode: str
    calls: list[list[str]] = field(default_factory=list)
    is_async: bool = False

    def __post_init__(self) -> None:
        self.checker = self.another_checker()

    @property
    def transactional(self) -> bool:
        return self.mode != "leased"

    def another_checker(self) -> AbstractIdempotentChecker:
        if self.transactional:
            engine = self.store.async_engine() if self.is_async else None
            return self.store.transactional(engine, savepoints=self.mode == "savepoints", lock_timeout_s=0.3)
        return self.store.leased()

    def consumer(self, checker: AbstractIdempotentChecker | None = None, **options) -> Consumer:
        """A consumer whose handler books each message and then raises the exception its body names, if any.

        A leased handler raises first: what a handler does outside a transaction, it must undo by itself.
        """
        options.setdefault("retry_for", ValueError)
        options.setdefault("idempotent_for", KeyError)
        make = Registry().consumer("orders", checker=checker or self.checker, **options)
        batch = options.get("batch", False)

        def handle(given):
            messages = given if batch else [given]
            self.calls.append([message.id for message in messages])
            for message in messages:
                if message.body:
                    raise getattr(builtins, message.body.decode())(message.id)

        def handle_booking(given, session: Session):
            for message in given if batch else [given]:
                session.execute(self.store.effects.insert().values(id=message.id))
            handle(given)

        return self.decorated(make, handle_booking if self.transactional else handle)

    def decorated(self, make: Callable[..., Consumer], handler: Callable[..., object]) -> Consumer:
        """The consumer of a plain handler, which an `async def` stands for in an async shop."""
        if self.is_async:
            return cast("Consumer", Awaited(cast("AsyncConsumer", make(as_async(handler)))))
        return make(handler)

    def effects(self) -> Counter[str]:
        """How often each effect happened: handler calls that came back, or what was committed."""
        if self.transactional:
            return Counter(self.store.booked())
        return Counter(name for call in self.calls for name in call)

    @contextmanager
    def held(self, consumer: Consumer, message: Message, by: str) -> Iterator[None]:
        """Somebody else is at this message meanwhile."""
        if by == "row":
            checker = self.store.leased() if self.transactional else self.checker
        else:
            checker = self.another_checker()
        claim = checker.protocol.claim(consumer.binding.requests.of(message)).claim
        assert claim is not None
        try:
            yield
        finally:
            checker.protocol.release(claim)


def open_shop(mode: str, request: pytest.FixtureRequest) -> Iterator[Shop]:
    with contextmanager(open_store)(request.param[1], request, reuse=True) as store:
        yield Shop(store, mode.removeprefix("async "), is_async=mode.startswith("async "))


LEASED = [
    pytest.param((mode, kind), id=f"{mode}-{kind}".replace(" ", "-"))
    for mode in ("leased", "async leased")
    for kind in ALL
]
TRANSACTIONAL = [
    pytest.param((mode, kind), id=f"{mode}-{kind}")
    for mode in ("transactional", "savepoints")
    for kind in SQL
] + [
    pytest.param((mode, kind), id=f"{mode}-{kind}".replace(" ", "-"))
    for mode in ("async transactional", "async savepoints")
    for kind in ASYNC
]


def message(name, body="", **headers):
    return Message("orders", body.encode(), id=name, headers=headers)


def messages(*names):
    return [message(name) for name in names]


def outcomes(results):
    return [result.outcome.value for result in results]
