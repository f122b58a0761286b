"""A worker is killed, or a task outlives its delivery: what the task and its follow-up have done in the end."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from idempotent.testing.adapter_contract import until
from tests.adapters.plug_ins import effects
from tests.adapters.taskiq_plugin.shop import opened, worker
from tests.support.stores import open_store

pytestmark = pytest.mark.slow
IDLE_S = 2.0


@pytest.fixture
def settings(settings):
    """The stream delivers a message again that is not acknowledged in two seconds."""
    return replace(settings, lease_s=3.0, idle_s=IDLE_S)


@pytest.fixture(params=["redis", "postgres"])
def on_each(request, settings):
    """Settings, over each checker with leases."""
    with contextmanager(open_store)(request.param, request, reuse=True) as store:
        yield replace(settings, url=store.url, table=store.table)


def ran(settings):
    return [line for line in settings.lines() if not line.startswith("saved ")]


def test_killed_in_the_task_it_runs_again(on_each):
    with opened(on_each) as shop, worker(on_each):
        assert shop.result(shop.send("die")) == "lived"
    assert ran(on_each) == ["die"] * 2


def test_killed_behind_the_completion_its_follow_up_still_runs_and_it_does_not(on_each, order):
    with opened(on_each) as shop, worker(on_each, "yes"):
        shop.send("charge", order, task_id=order)
        assert shop.result(order) == [f"{order}!", 0]
        until(lambda: f"saved {order}" in on_each.lines(), "the follow-up")
    assert ran(on_each) == [f"charge {order}"]


def test_an_effect_in_the_database_commits_with_the_key(request, settings, order):
    with contextmanager(open_store)("postgres", request, reuse=True) as store:
        settings = replace(settings, url=store.url, table=store.table, is_transactional=True)
        with opened(settings) as shop, worker(settings):
            shop.send("book", order, dies=True, task_id=order)
            assert shop.result(order) == order
            shop.send("book", order, dies=True, task_id=order)
            until(lambda: settings.lines().count(f"saved {order}") >= 2, "the result of the copy")
            assert shop.result(order) == order
        assert ran(settings) == [f"book {order}"] * 2
        found = effects(settings)
        assert found.count(order) == 1


def test_a_task_whose_effect_is_unknown_fails(settings):
    with opened(settings) as shop, worker(settings):
        assert shop.result(shop.send("park")) == "DeadKeyError"
    assert ran(settings) == ["park"]


def test_a_task_that_outlives_its_delivery_runs_once(settings, order):
    """The plain task beside it runs several times, so copies were delivered."""
    with opened(settings) as shop, worker(settings):
        shop.send("plain", order, 4 * IDLE_S)
        shop.send("charge", order, 4 * IDLE_S, task_id=order)
        assert shop.result(order) == [f"{order}!", 0]
        until(lambda: ran(settings).count(f"plain {order}") > 1, "a copy of the plain task")
        time.sleep(IDLE_S)
    assert ran(settings).count(f"charge {order}") == 1
