"""A process of a worker, or the whole worker, is killed: what the task and its follow-up have done in the end."""

from __future__ import annotations

import secrets
import signal
import threading
from contextlib import ExitStack, contextmanager

import pytest

from idempotent.testing.adapter_contract import until
from tests.adapters.celery_plugin.shop import opened, replace, worker
from tests.adapters.plug_ins import effects
from tests.adapters.rabbitmq.rabbit import Rabbit
from tests.support.stores import open_store

pytestmark = pytest.mark.slow
DEADLINE_S = 120.0


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request):
    """Redis delivers again 3 s after a delivery, RabbitMQ when a connection is gone."""
    if request.param == "redis":
        yield request.getfixturevalue("redis_url")
        return
    yield request.getfixturevalue("rabbitmq_url")


@pytest.fixture(params=["redis", "postgres", "postgres-transactional"])
def on_each(request, settings, broker):
    """Settings of an application, over each broker and checker."""
    kind, _, transactional = request.param.partition("-")
    with contextmanager(open_store)(kind, request, reuse=True) as store:
        made = replace(
            settings,
            broker=broker,
            url=store.url,
            table=store.table,
            visibility_s=3,
            is_transactional=bool(transactional),
        )
        yield made
    if broker.startswith("amqp"):
        Rabbit(broker).delete(settings.queue)


def ran(settings):
    """What tasks did, without what was sent, which the shop notes too."""
    return [line for line in settings.lines() if not line.startswith("sent ")]


@contextmanager
def surviving(settings, ending, dies=""):
    """A worker; one that dies as a whole has a second one beside it, which waits."""
    with ExitStack() as running:
        first = running.enter_context(worker(settings, dies=dies))
        if ending == "whole":
            running.enter_context(following(first, settings))
        yield
    assert (first.returncode == -signal.SIGKILL) is (ending == "whole")


@contextmanager
def following(first, settings):
    """A worker that starts when the first one is dead."""
    with ExitStack() as running:

        def follow():
            first.wait(DEADLINE_S)
            running.enter_context(worker(settings))

        thread = threading.Thread(target=follow)
        thread.start()
        yield
        thread.join()


@pytest.mark.parametrize("ending", ["child", "whole"])
def test_killed_in_the_task_it_runs_again(on_each, ending):
    with opened(on_each) as app, surviving(on_each, ending):
        result = app.tasks["die"].delay(ending == "whole")
        assert result.get(timeout=DEADLINE_S) == "lived"
    assert ran(on_each) == ["die"] * 2


@pytest.mark.parametrize("ending", ["child", "whole"])
def test_killed_behind_the_completion_its_follow_up_still_runs_and_it_does_not(on_each, ending):
    with opened(on_each) as app, surviving(on_each, ending, dies=ending):
        order = secrets.token_hex(6)
        chained = app.tasks["charge"].s(order) | app.tasks["tail"].s()
        chained.delay().get(timeout=DEADLINE_S)
    assert ran(on_each) == [f"charge {order}", f"tail {[order, 0]}"]


def test_an_effect_in_the_database_commits_with_the_key(request, settings, broker):
    with contextmanager(open_store)("postgres", request, reuse=True) as store:
        settings = replace(
            settings, broker=broker, url=store.url, table=store.table, visibility_s=3, is_transactional=True
        )
        ids = [secrets.token_hex(6) for _ in range(2)]
        with opened(settings) as app, worker(settings):
            for _ in range(2):
                result = app.tasks["book"].apply_async((ids[0],), {"dies": True}, task_id=ids[0])
                assert result.get(timeout=DEADLINE_S) == ids[0]
                result.forget()
            assert app.tasks["rebook"].delay(ids[1]).get(timeout=DEADLINE_S) == 1
        assert ran(settings) == [f"book {ids[0]}"] * 2
        assert [found for found in effects(settings) if found in ids] == ids


def test_a_task_whose_effect_is_unknown_is_parked(settings):
    with opened(settings) as app, worker(settings):
        result = app.tasks["park"].delay()
        until(lambda: result.state == "FAILURE", "a failure")
        assert type(result.result).__name__ == "DeadKeyError"
    assert ran(settings) == ["park"]
