"""What is found out when a task is declared, and tasks without a worker process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from taskiq import Context, InMemoryBroker, TaskiqDepends

from idempotent import ConfigurationError
from idempotent.adapters.taskiq import idempotent_task
from idempotent.checkers import MemoryChecker


@dataclass
class Receipt:
    order: str
    tags: frozenset[str]


@pytest.fixture
def broker():
    return InMemoryBroker()


def made(broker: Any, function: Any, **options: Any) -> Any:
    return idempotent_task(broker, **{"checker": MemoryChecker(), "group": "tests", **options})(function)


async def takes_session(order: str, session: AsyncSession) -> None: ...


async def echo(order: str = "") -> str:
    return order


async def returns_file(order: str) -> asyncio.Event:
    raise NotImplementedError


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        (takes_session, {}, "use a TransactionalSqlChecker"),
        (echo, {"key": "number"}, "names no argument"),
        (returns_file, {}, "cannot be stored"),
    ],
)
def test_a_task_that_cannot_be_protected_is_refused(broker, function, options, says):
    with pytest.raises(ConfigurationError, match=says):
        made(broker, function, task_name="refused", **options)


async def values(task: Any, *args: Any, **kwargs: Any) -> list[Any]:
    """Of two sendings."""
    found = []
    for _ in range(2):
        sent = await task.kiq(*args, **kwargs)
        result = await sent.wait_result(timeout=10)
        result.raise_for_error()
        found.append(result.return_value)
    return found


def test_a_result_has_the_type_that_the_task_returns(broker):
    async def charge(order: str) -> Receipt:
        runs.append(order)
        return Receipt(order, frozenset({"paid"}))

    runs: list[str] = []
    task = made(broker, charge, key="order")
    assert asyncio.run(values(task, "7")) == [Receipt("7", frozenset({"paid"}))] * 2
    assert runs == ["7"]


@pytest.mark.parametrize("is_async", [False, True])
def test_dependencies_and_all_kinds_of_parameters_are_given(broker, is_async):
    def tax() -> int:
        return 19

    def charge(
        order: str,
        *more: str,
        context: Annotated[Context, TaskiqDepends()],
        rate: int = TaskiqDepends(tax),
        **notes: str,
    ) -> list[Any]:
        return [order, list(more), context.message.task_name, rate, notes]

    async def charge_async(
        order: str,
        *more: str,
        context: Annotated[Context, TaskiqDepends()],
        rate: int = TaskiqDepends(tax),
        **notes: str,
    ) -> list[Any]:
        return [order, list(more), context.message.task_name, rate, notes]

    task = made(
        broker, charge_async if is_async else charge, task_name="charge", key=lambda order, *_, **__: order
    )
    wanted = ["7", ["a", "b"], "charge", 19, {"by": "hand"}]
    assert asyncio.run(values(task, "7", "a", "b", by="hand")) == [wanted] * 2


def test_as_a_function_it_runs_each_time(broker):
    async def charge(order: str) -> int:
        runs.append(order)
        return len(runs)

    def pack(order: str) -> int:
        runs.append(order)
        return len(runs)

    runs: list[str] = []
    charged, packed = (made(broker, each, key="order") for each in (charge, pack))
    assert [asyncio.run(charged("7")) for _ in range(2)] == [1, 2]
    assert [packed("7") for _ in range(2)] == [3, 4]
    assert charged.task_name.endswith(":charge")
