"""A shop over every store, in every mode; and event loops and checkers for async handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from idempotent.checkers.memory import MemoryBacked
from tests.processing.shop import LEASED, TRANSACTIONAL, Shop, open_shop
from tests.processing.tasks import BLOCKING, CHECKERS, LOOPS, BlockingChecker
from tests.worker.tasks.scopes import BEGINNINGS, Begin


@pytest.fixture(params=[*LEASED, *TRANSACTIONAL])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    yield from open_shop(request.param[0], request)


@pytest.fixture(params=LEASED)
def leased_shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    yield from open_shop(request.param[0], request)


@pytest.fixture(params=TRANSACTIONAL)
def transactional_shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    yield from open_shop(request.param[0], request)


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Runs a coroutine function to its end in an event loop: that of asyncio, the same in debug mode, and uvloop's."""
    return LOOPS[request.param]


@pytest.fixture(params=BEGINNINGS)
def begin(request: pytest.FixtureRequest) -> Begin[Any]:
    """Begins a step that can be cancelled."""
    return BEGINNINGS[request.param]


@pytest.fixture(params=CHECKERS)
def checker(request: pytest.FixtureRequest) -> Iterator[MemoryBacked]:
    """A checker whose steps tasks call themselves, and two whose steps run beside the loop."""
    made = CHECKERS[request.param]()
    yield made
    made.close()


@pytest.fixture(params=BLOCKING)
def blocking(request: pytest.FixtureRequest) -> Iterator[BlockingChecker]:
    """A checker whose steps run beside the loop, and wait if a test says so."""
    made = BLOCKING[request.param]()
    yield made
    made.go.set()
    made.close()
