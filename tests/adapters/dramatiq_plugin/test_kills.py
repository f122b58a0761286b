"""A worker is killed: what the actor and its follow-up have done in the end."""

from __future__ import annotations

import signal
from contextlib import contextmanager

import pytest
from dramatiq.results import ResultFailure

from tests.adapters.dramatiq_plugin.shop import DEADLINE_S, opened, replace, worker
from tests.adapters.plug_ins import effects
from tests.support.stores import open_store

pytestmark = pytest.mark.slow


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request):
    """Redis delivers again when the process has shown no life for 3 s, RabbitMQ when its connection is gone."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture(params=["redis", "postgres", "postgres-transactional"])
def on_each(request, settings, broker):
    """Settings, over each broker and checker."""
    kind, _, transactional = request.param.partition("-")
    with contextmanager(open_store)(kind, request, reuse=True) as store:
        yield replace(
            settings,
            broker=broker,
            url=store.url,
            table=store.table,
            is_transactional=bool(transactional),
            lease_s=3.0,
        )


@contextmanager
def surviving(settings, dies=""):
    """A worker whose process is killed, and then another one."""
    with worker(settings, dies) as first:
        yield lambda: first.wait(DEADLINE_S)
        assert first.returncode not in (0, -signal.SIGTERM)


def test_killed_in_the_actor_it_runs_again(on_each, order):
    with opened(on_each) as shop:
        with surviving(on_each) as killed:
            message = shop.send("die", order)
            killed()
        with worker(on_each):
            assert shop.result(message) == "lived"
    assert on_each.lines() == ["die"] * 2


def test_killed_behind_the_completion_its_follow_up_still_runs_and_it_does_not(on_each, order):
    with opened(on_each) as shop:
        charge = shop.message("charge", order)
        last = shop.message("ended")
        with surviving(on_each, "yes") as killed:
            shop.pipeline(charge, last).run()
            killed()
        assert on_each.lines() == [f"charge {order}"]
        with worker(on_each):
            assert shop.result(charge) == [order, 0]
            assert shop.result(last) == [order, 0]
    assert on_each.lines() == [f"charge {order}", f"ended {[order, 0]}"]


def test_an_effect_in_the_database_commits_with_the_key(request, settings, broker, order):
    with contextmanager(open_store)("postgres", request, reuse=True) as store:
        settings = replace(settings, broker=broker, url=store.url, table=store.table, is_transactional=True)
        with opened(settings) as shop:
            with surviving(settings) as killed:
                message = shop.send("book", order, kwargs={"dies": True})
                killed()
            with worker(settings):
                assert shop.result(message) == order
                again = shop.send("book", order, kwargs={"dies": True}, message_id=message.message_id)
                assert shop.result(again) == order
                assert shop.result(shop.send("rebook", f"{order}-2")) == 1
        assert settings.lines() == [f"book {order}"] * 2
        found = effects(settings)
        assert [each for each in found if each.startswith(order)] == [order, f"{order}-2"]


def test_a_message_whose_effect_is_unknown_is_dead_lettered(settings, order):
    settings = replace(settings, lease_s=3.0)
    with opened(settings) as shop:
        with surviving(settings) as killed:
            message = shop.send("park", order)
            killed()
        with worker(settings):
            with pytest.raises(ResultFailure) as caught:
                shop.result(message)
            assert caught.value.orig_exc_type == "DeadKeyError"
            assert shop.dead() == [message.message_id]
    assert settings.lines() == ["park"]
