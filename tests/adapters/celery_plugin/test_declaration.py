"""What is found out when Celery makes a task, and calls without a worker."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest
from celery import Celery
from sqlalchemy.orm import Session

from idempotent import ConfigurationError, InProgressError, Message, StoreError
from idempotent.adapters.celery import IdempotentTask, idempotent_task
from idempotent.checkers import MemoryChecker, RedisChecker


class Receipt(pydantic.BaseModel):
    order: str


@pytest.fixture
def app():
    with Celery("shop", broker="memory://", set_as_current=False) as app:
        app.conf.task_always_eager = True
        yield app


def made(app: Celery, function: Any, **options: Any) -> Any:
    task = idempotent_task(app, **{"checker": MemoryChecker(), "group": "tests", "shared": False, **options})
    made = task(function)
    assert made.name
    return made


def takes_session(order: str, session: Session) -> None: ...


def echo(order: str = "") -> str:
    return order


async def is_async(order: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        (is_async, {}, "which Celery does not run"),
        (takes_session, {}, "use a TransactionalSqlChecker"),
        (echo, {"key": "number"}, "names no argument"),
        (echo, {"checker": None}, "needs checker= and group="),
        (echo, {"group": None}, "needs checker= and group="),
    ],
)
def test_a_task_that_cannot_be_protected_is_refused(app, function, options, says):
    with pytest.raises(ConfigurationError, match=says):
        made(app, function, **options)


def warnings(caplog):
    return [line.event for line in caplog.records if line.name.startswith("idempotent")]


@pytest.mark.parametrize("option", ["acks_late", "reject_on_worker_lost"])
def test_early_acknowledgement_is_warned_of_once(app, caplog, option):
    made(app, echo)
    assert not warnings(caplog)
    task = made(app, echo, name="early", **{option: False})
    task.delay()
    assert warnings(caplog) == ["task_acknowledged_early"]
    assert getattr(task, option) is False


def test_a_base_of_many_tasks_and_a_class_of_one(app):
    class Base(IdempotentTask):
        checker = MemoryChecker()
        group = "tests"

        def key(order):  # noqa: N805 - given as it is, not as a method
            return order

    class Once(Base):
        name = "once"

        def run(self, order):
            return f"{self.name} {next(runs)}"

    def plain(order):
        return next(runs)

    runs = iter("12")
    named = app.register_task(Once())
    of_base = app.task(base=Base, shared=False, name="of_base")(plain)
    assert [named.delay(order="7").get() for _ in range(2)] == ["once 1"] * 2
    assert [of_base.delay("7").get() for _ in range(2)] == ["2"] * 2


@pytest.mark.parametrize("bind", [False, True])
def test_here_a_task_runs_once_for_its_own_key_and_a_function_each_time(app, bind):
    runs = []

    def charge(*given: str) -> int:
        runs.append(given)
        return len(runs)

    task = made(app, charge, bind=bind, key=lambda order: order)
    assert [task.delay("7").get(), task.apply(("7",)).get(), task.delay("8").get()] == [1, 1, 2]
    assert task("7") == 3
    by_id = made(app, charge, name="by_id", bind=bind)
    assert [by_id.delay("7").get() for _ in range(2)] == [4, 5]
    assert [by_id.apply(("7",), task_id="one").get() for _ in range(2)] == [6, 6]


def test_here_nothing_is_sent_again(app):
    task = made(app, echo, key="order", name="charge")
    answers = []

    def run() -> None:
        answers.append(task.delay("7").result)

    task._consumer.process(Message("charge", id="7"), call=run)
    assert isinstance(answers[0], InProgressError)
    away = made(app, echo, name="away", checker=RedisChecker("redis://127.0.0.1:1"))
    assert isinstance(away.delay().result, StoreError)
    away.checker.close()


def test_the_result_of_a_pydantic_task_is_the_dict_that_celery_makes(app):
    def charge(receipt: Receipt) -> Receipt:
        return receipt

    task = made(app, charge, pydantic=True, key=lambda receipt: receipt["order"])
    assert [task.delay({"order": "7"}).get() for _ in range(2)] == [{"order": "7"}] * 2
