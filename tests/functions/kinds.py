"""Every checker, with plain functions and with `async def`: one test for all."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from idempotent import idempotent, once
from idempotent.checkers.base import AbstractIdempotentChecker
from tests.support.stores import Store

KINDS = (
    "memory",
    "sqlite",
    "mysql",
    "postgres",
    "redis",
    "sqlite-transactional",
    "mysql-transactional",
    "postgres-transactional",
    "memory-async",
    "redis-async",
    "postgres-async",
    "mysql-transactional-async",
    "postgres-transactional-async",
)


@dataclass(frozen=True)
class Kind:
    """A checker, and the kind of functions that it protects here."""

    name: str
    store: Store
    checker: AbstractIdempotentChecker

    @property
    def is_async(self) -> bool:
        return self.name.endswith("-async")

    @property
    def is_transactional(self) -> bool:
        return "-transactional" in self.name

    def protected(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """A plain function of the arguments, over `@idempotent`, or its `async def`."""
        options = {"group": "tests", "key": "order", "name": "charge"} | options
        if not self.is_async:
            return idempotent(self.checker, **options)(function)

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(function, *args, **kwargs)

        call = idempotent(self.checker, **options)(awaited)
        return lambda *args, **kwargs: asyncio.run(call(*args, **kwargs))

    def block(self, body: Callable[[Any], Any], key: Any, **options: Any) -> None:
        """Run a body in a block of `once`."""
        options = {"group": "tests"} | options

        async def run() -> None:
            async with once(self.checker, key, **options) as block:
                body(block)

        if self.is_async:
            asyncio.run(run())
        else:
            with once(self.checker, key, **options) as block:
                body(block)


def kind_of(name: str, store: Store) -> Kind:
    if name.endswith("transactional-async"):
        checker = store.transactional(store.async_engine())
    elif "transactional" in name:
        checker = store.transactional()
    else:
        checker = store.leased()
    return Kind(name, store, checker)
