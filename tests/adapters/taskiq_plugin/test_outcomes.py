"""What taskiq does with each outcome: the table of docs/taskiq.md, with a real worker."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

import pytest

from idempotent.testing.adapter_contract import until
from tests.adapters.plug_ins import Rows, bury, held, proxied
from tests.adapters.taskiq_plugin.shop import Settings, opened, worker
from tests.support.tables import new_name

row = Rows("taskiq.md", "a task that is")
AT = "2026-11-28T21:00:00"


@pytest.fixture(scope="module")
def shop(redis_url, tmp_path_factory):
    """A broker with a worker."""
    ran = tmp_path_factory.mktemp("taskiq") / "ran"
    settings = Settings(redis_url, f"taskiq-{secrets.token_hex(6)}", str(ran), redis_url, new_name())
    with opened(settings) as shop, worker(settings):
        yield shop


def saved(shop, task_id, times):
    """A result is stored for as many copies."""
    until(lambda: shop.settings.count("saved", task_id) == times, f"{times} stored results")
    return shop.result(task_id)


@row("new", "stores the result, and calls `post_execute` and `post_save`")
@row("done before", "stores the stored result, and calls them again")
@pytest.mark.parametrize(("name", "value"), [("charge", ["{}!", 0]), ("pack", "{}!")])
def test_a_new_task_and_a_duplicate_have_the_result_and_the_follow_up(shop, order, name, value):
    wanted = [value[0].format(order), 0] if isinstance(value, list) else value.format(order)
    for times in (1, 2):
        shop.send(name, order, task_id=order)
        assert saved(shop, order, times) == wanted
    assert shop.settings.count(name, order) == 1


def test_the_key_may_be_an_argument_and_the_result_a_dataclass(shop, order):
    for task_id in (f"{order}-1", f"{order}-2"):
        shop.send("ship", AT, order=order, task_id=task_id)
        assert shop.result(task_id) == {"order": order, "at": AT}
    assert shop.settings.count("ship", order) == 1


@row("without a key (`key=` gives None)", "the same: `MissingKeyError`")
def test_a_task_without_a_key_fails(shop, order):
    shop.send("ship", AT, order=None, task_id=order)
    assert saved(shop, order, 1) == "MissingKeyError"
    assert not shop.settings.count("ship", "None")


@row(
    "done before, and its result is not stored",
    "stores `ResultNotStoredError`, without a retry, unless it has a result of that id; it does not run again",
)
def test_a_duplicate_without_a_stored_result_fails(shop, order):
    shop.send("count", order, task_id=f"{order}-1")
    assert saved(shop, f"{order}-1", 1) == 1
    shop.send("count", order, task_id=f"{order}-2")
    assert saved(shop, f"{order}-2", 1) == "ResultNotStoredError"
    shop.send("count", order, task_id=f"{order}-1")
    shop.send("count", order, task_id=f"{order}-3")
    assert saved(shop, f"{order}-3", 1) == "ResultNotStoredError"
    assert saved(shop, f"{order}-1", 1) == 1
    assert shop.settings.count("count", order) == 1


@row("raising an error", "its own error: `retry_on_error` and `max_retries` decide; the key is free")
def test_a_failed_task_has_its_own_error_and_may_run_again(shop, order):
    for times in (1, 2):
        shop.send("refuse", order, task_id=order)
        assert saved(shop, order, times) == "ZeroDivisionError"
        assert shop.settings.count("refuse", order) == 2 * times


@row(
    "raising `NoResultError` (`context.requeue()`) or `TaskRejectedError`",
    "what it does with it; no failed attempt, the key is free",
)
def test_what_a_task_answers_reaches_taskiq(shop, order):
    assert shop.result(shop.send("again", order)) == "ended"
    assert shop.settings.count("again", order) == 2
    for times in (1, 2):
        shop.send("reject", order, task_id=order)
        # The type of this error does not come through the result backend.
        assert saved(shop, order, times) == "Exception"
        assert shop.settings.count("reject", order) == times


@row(
    "ended by its label `timeout`, an `async def`",
    "`TimeoutError`: as with an error; `on_cancel` decides on the key, which is free by default",
)
def test_a_task_that_took_too_long_may_run_again(shop, order):
    shop.send("slow", order, task_id=order)
    assert saved(shop, order, 1) == "ended"
    assert shop.settings.count("slow", order) == 2


def test_a_task_that_is_to_finish_runs_to_its_end_and_its_retry_has_the_result(shop, order):
    shop.send("finish", order, task_id=order)
    assert saved(shop, order, 1) == "ended"
    assert shop.settings.count("finish", order) == 1


@row(
    "running now, in another worker",
    "holds it for up to a second, then sends it again with `requeue()`, and the same `_retries`",
)
@pytest.mark.parametrize(("name", "value"), [("charge", ["{}!", 0]), ("pack", "{}!")])
def test_a_running_task_comes_again_without_using_up_retries(shop, order, name, value):
    wanted = [value[0].format(order), 0] if isinstance(value, list) else value.format(order)
    with held(shop.checker, name, order):
        shop.send(name, order, task_id=order)
        time.sleep(3)
        assert not shop.is_ready(order)
    assert saved(shop, order, 1) == wanted
    assert shop.settings.count(name, order) == 1


@row('dead, or its effect is unknown (`on_expired_lease="park"`)', "stores `DeadKeyError`, without a retry")
def test_a_dead_key_fails(shop, order):
    bury(shop.checker, "charge", order)
    shop.send("charge", order, task_id=order)
    assert saved(shop, order, 1) == "DeadKeyError"
    assert not shop.settings.count("charge", order)


@pytest.mark.slow
@row("received while the store does not answer", "the same; a task never runs without protection")
def test_while_the_store_is_away_a_task_comes_again_without_using_up_retries(settings, redis_url, order):
    with proxied(redis_url) as (proxy, behind):
        settings = replace(settings, url=behind)
        with opened(settings) as shop, worker(settings):
            assert shop.result(shop.send("charge", "warm")) == ["warm!", 0]
            proxy.refuse()
            proxy.cut()
            shop.send("charge", order, task_id=order)
            time.sleep(4)
            assert not shop.is_ready(order)
            proxy.recover()
            assert shop.result(order) == [f"{order}!", 0]
            assert shop.settings.count("charge", order) == 1


def test_the_page_has_these_rows():
    assert row.on_page() == row.proved
