"""What is found out when an actor is declared, and calls without a worker."""

from __future__ import annotations

from typing import Any

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from idempotent import ConfigurationError, DeadKeyError
from idempotent.adapters.dramatiq import Idempotency, IdempotentActor, idempotent_actor
from idempotent.checkers import MemoryChecker


@pytest.fixture
def broker():
    broker = StubBroker()
    broker.add_middleware(Idempotency())
    yield broker
    broker.close()


def made(broker: Any, function: Any, **options: Any) -> Any:
    return idempotent_actor(**{"broker": broker, "checker": MemoryChecker(), "group": "tests", **options})(
        function
    )


def takes_session(order: str, session: Session) -> None: ...


async def takes_async_session(order: str, session: AsyncSession) -> None: ...


def echo(order: str = "") -> str:
    return order


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        (takes_session, {}, "use a TransactionalSqlChecker"),
        (takes_async_session, {}, "an `async def` with a session"),
        (echo, {"key": "number"}, "names no argument"),
        (echo, {"checker": None}, "takes checker and group"),
        (echo, {"group": None}, "takes checker and group"),
        (
            echo,
            {"idempotent": {"checker": MemoryChecker(), "group": "tests", "keys": "order"}},
            "it has .*keys",
        ),
    ],
)
def test_an_actor_that_cannot_be_protected_is_refused(broker, function, options, says):
    with pytest.raises(ConfigurationError, match=says):
        made(broker, function, **options)
    assert not broker.actors


def test_a_broker_without_the_middleware_is_refused():
    with pytest.raises(ConfigurationError, match="Idempotency"):
        made(StubBroker(), echo)


def test_an_actor_of_its_class_has_the_same_options(broker):
    ours = {"checker": MemoryChecker(), "group": "tests", "key": "order"}
    options = {"throws": KeyError, "max_retries": 3}
    actor = dramatiq.actor(actor_class=IdempotentActor, idempotent=ours, broker=broker, **options)(echo)
    assert isinstance(actor, IdempotentActor)
    assert actor.options["max_retries"] == 3
    assert {KeyError, DeadKeyError} < set(actor.options["throws"])
    with pytest.raises(ConfigurationError, match="it has nothing"):
        dramatiq.actor(actor_class=IdempotentActor, broker=broker, actor_name="bare")(echo)


def test_as_a_function_it_runs_each_time(broker):
    runs: list[str] = []
    actor = made(broker, runs.append, actor_name="charge")
    for _ in range(2):
        actor("7")
    assert runs == ["7", "7"]
