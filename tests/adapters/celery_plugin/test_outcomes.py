"""What Celery does with each outcome: the table of docs/celery.md, with a real worker."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from celery.exceptions import TimeoutError as NoResultError

from idempotent.testing.adapter_contract import until
from tests.adapters.celery_plugin.shop import Settings, opened, replace, worker
from tests.adapters.plug_ins import Rows, bury, held, proxied
from tests.support.tables import new_name

DEADLINE_S = 30
row = Rows("celery.md", "a task that is")


@pytest.fixture(scope="module", params=["threads", pytest.param("prefork", marks=pytest.mark.slow)])
def app(request, redis_url, tmp_path_factory):
    """An application with a worker, which forks after its checker was used."""
    ran = tmp_path_factory.mktemp("celery") / "ran"
    queue = f"celery-{secrets.token_hex(6)}"
    settings = Settings(redis_url, redis_url, queue, str(ran), redis_url, new_name())
    with opened(settings) as app, worker(settings, request.param):
        yield app


@pytest.fixture
def order():
    return secrets.token_hex(6)


def send(app, name, *args, **options):
    return app.tasks[name].apply_async(args, options.pop("kwargs", None), **options)


def finished(result):
    result.get(timeout=DEADLINE_S, propagate=False)
    return result.state, result.result


def failure(result):
    state, error = finished(result)
    assert state == "FAILURE"
    return type(error).__name__


@row("new", "`SUCCESS` with the result; callbacks, chain and chord go on")
@row(
    "done before",
    "`SUCCESS` with the stored result; callbacks, chain and chord go on again, under the same ids",
)
def test_a_new_task_and_a_duplicate_have_the_result_and_the_follow_up(app, order):
    for tails in (1, 2):
        tail = app.tasks["tail"].s().set(task_id=f"tail-{order}")
        result = send(app, "charge", order, task_id=order, link=tail)
        assert finished(result) == ("SUCCESS", [order, 0])
        until(lambda tails=tails: app.settings.count("tail", str([order, 0])) == tails, "the follow-up")
        result.forget()
    assert app.settings.count("charge", order) == 1


def test_the_key_may_be_an_argument(app, order):
    answers = [finished(send(app, "ship", kwargs={"order": order})) for _ in range(2)]
    assert answers == [("SUCCESS", f"shipped {order}")] * 2
    assert app.settings.count("ship", order) == 1


@row("without a key (`key=` gives None)", "`FAILURE`: `MissingKeyError`")
def test_a_task_without_a_key_fails(app):
    assert failure(send(app, "ship", kwargs={"order": None})) == "MissingKeyError"
    assert not app.settings.count("ship", "None")


@row("done before, and its result is not stored", "`FAILURE`: `ResultNotStoredError`; it does not run again")
def test_a_duplicate_without_a_stored_result_fails(app, order):
    first = send(app, "count", order, task_id=order)
    assert finished(first) == ("SUCCESS", 1)
    first.forget()
    again = send(app, "count", order, task_id=order)
    # `get()` alone may hear the announcement of the first result, late.
    until(lambda: app.backend.get_task_meta(order, cache=False)["status"] == "FAILURE", "the failure")
    again.get(timeout=DEADLINE_S, propagate=False)
    assert type(app.backend.get_task_meta(order, cache=False)["result"]).__name__ == "ResultNotStoredError"
    assert app.settings.count("count", order) == 1


@row(
    "raising an error", "its own error: `autoretry_for` and `retry()` decide, else `FAILURE`; the key is free"
)
def test_a_failed_task_has_its_own_error_and_may_run_again(app, order):
    for times in (1, 2):
        result = send(app, "refuse", order, task_id=order)
        assert failure(result) == "ZeroDivisionError"
        assert app.settings.count("refuse", order) == times
        result.forget()
    result = send(app, "again", order, task_id=f"again-{order}")
    assert finished(result) == ("SUCCESS", 1)
    assert app.settings.count("again", order) == 2


@row("raising `Retry`, `Ignore` or `Reject`", "what Celery does with it; no failed attempt, the key is free")
def test_what_a_task_answers_celery_reaches_it(app, order):
    for times in (1, 2):
        result = send(app, "ignore", order, task_id=order)
        until(lambda times=times: app.settings.count("ignore", order) == times, "a run")
        with pytest.raises(NoResultError):
            result.get(timeout=0.3)


@row(
    "running now, here or elsewhere",
    "no result yet: its message is sent again, with a countdown of up to 5 s and the same `retries`",
)
def test_a_running_task_comes_again_without_using_up_retries(app, order):
    with held(app.checker, "again", order):
        result = send(app, "again", order, task_id=order)
        until(lambda: app.settings.count("sent", order) > 1, "the message that is sent again")
    # It fails and is retried once, as one that was not sent again: with a retry used up, it would not fail.
    assert finished(result) == ("SUCCESS", 1)
    assert app.settings.count("again", order) == 2


@row(
    'dead: five processes died in it, or its effect is unknown (`on_expired_lease="park"`)',
    "`FAILURE`: `DeadKeyError`, [for a person](reference/frameworks.md#task-queues)",
)
def test_a_dead_key_fails(app, order):
    bury(app.checker, "charge", order)
    assert failure(send(app, "charge", order, task_id=order)) == "DeadKeyError"
    assert not app.settings.count("charge", order)


@pytest.mark.slow
@row(
    "received while the store does not answer (`store_failed`)",
    "the same, PENDING; a task never runs without protection",
)
def test_while_the_store_is_away_a_task_comes_again_without_using_up_retries(settings, redis_url, order):
    with proxied(redis_url) as (proxy, behind):
        settings = replace(settings, url=behind)
        with opened(settings) as app, worker(settings, "threads"):
            assert finished(send(app, "charge", "warm")) == ("SUCCESS", ["warm", 0])
            proxy.refuse()
            proxy.cut()
            result = send(app, "charge", order, task_id=order)
            with pytest.raises(NoResultError):
                result.get(timeout=4)
            proxy.recover()
            assert finished(result) == ("SUCCESS", [order, 0])
            assert app.settings.count("charge", order) == 1


@pytest.mark.slow
@row(
    "retried, and delivered again by the broker",
    "two copies, one at a time until one succeeds; each counts its own retries",
)
def test_each_copy_of_a_retry_counts_its_own_retries_until_one_has_succeeded(settings, order):
    """Redis delivers a retry again whose countdown is longer than the `visibility_timeout`."""
    settings = replace(settings, visibility_s=1)
    with opened(settings) as app, worker(settings, "threads"):
        result = send(app, "stubborn", order, task_id=order, link=app.tasks["tail"].s())
        assert finished(result) == ("SUCCESS", order)
        until(lambda: settings.count("tail", order) > 1, "the end of a copy")
    assert settings.count("stubborn", f"{order} 1") > 1
    assert settings.count("stubborn", f"{order} 2") == 1


@pytest.mark.slow
def test_a_delivery_that_cannot_be_sent_again_is_not_lost(settings, order):
    with opened(settings) as app, worker(settings, "threads", dies="unsent"):
        with held(app.checker, "charge", order):
            result = send(app, "charge", order, task_id=order)
            until(Path(f"{settings.ran}.unsent").exists, "a message that could not be sent")
        assert finished(result) == ("SUCCESS", [order, 0])


def test_the_page_has_these_rows():
    assert row.on_page() == row.proved
