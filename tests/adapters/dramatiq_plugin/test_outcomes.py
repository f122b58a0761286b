"""What dramatiq does with each outcome: the table of docs/dramatiq.md, with a real worker."""

from __future__ import annotations

import secrets

import dramatiq
import pytest
from dramatiq.results import ResultFailure, ResultMissing

from idempotent.testing.adapter_contract import until
from tests.adapters.dramatiq_plugin.shop import Settings, opened, replace, worker
from tests.adapters.plug_ins import Rows, bury, held, proxied
from tests.support.tables import new_name

row = Rows("dramatiq.md", "a message that is")


@pytest.fixture(scope="module")
def shop(redis_url, tmp_path_factory):
    """A broker with a worker."""
    ran = tmp_path_factory.mktemp("dramatiq") / "ran"
    queue = f"dramatiq-{secrets.token_hex(6)}"
    settings = Settings(redis_url, redis_url, queue, str(ran), redis_url, new_name())
    with opened(settings) as shop, worker(settings):
        yield shop


def failure(shop, message):
    """The type of the error with which a message has failed for good."""
    with pytest.raises(ResultFailure) as caught:
        shop.result(message)
    until(lambda: message.message_id in shop.dead(), "a dead letter")
    return caught.value.orig_exc_type


@row("new", "stores the result; pipeline, `on_success` and group go on")
@row(
    "done before",
    "stores the stored result; pipeline, `on_success` and group go on again, a pipeline under the same ids",
)
def test_a_new_message_and_a_duplicate_have_the_result_and_the_follow_up(shop, order):
    tail = shop.message("tail", message_id=f"{order}-tail")
    piped = shop.pipeline(shop.message("charge", order, message_id=order), tail)
    for tails in (1, 2):
        piped.run()
        assert shop.result(piped.messages[0]) == [order, 0]
        until(lambda tails=tails: shop.settings.count("tail", str([order, 0])) == tails, "the follow-up")
    assert shop.settings.count("charge", order) == 1


def test_a_protected_actor_at_the_end_of_a_pipeline_runs_once(shop, order):
    last = shop.message("count", message_id=f"{order}-tail", store_results=False)
    piped = shop.pipeline(shop.message("charge", order, message_id=order), last)
    for _ in range(2):
        piped.run()
        assert shop.result(piped.messages[0]) == [order, 0]
    until(lambda: f"{order}-tail" in shop.dead(), "the second delivery, whose result is not stored")
    assert shop.settings.count("count", str([order, 0])) == 1


def test_the_callback_of_a_group_is_started(shop, order):
    group = dramatiq.group(
        [shop.message("charge", f"{order}-{number}") for number in range(3)], broker=shop.broker
    )
    group.add_completion_callback(shop.message("grouped", order))
    group.run()
    until(lambda: shop.settings.count("grouped", order) == 1, "the callback")
    assert [shop.settings.count("charge", f"{order}-{number}") for number in range(3)] == [1] * 3


def test_the_key_may_be_an_argument(shop, order):
    answers = [shop.result(shop.send("ship", kwargs={"order": order})) for _ in range(2)]
    assert answers == [f"shipped {order}"] * 2
    assert shop.settings.count("ship", order) == 1


def test_an_async_def_runs_once(shop, order):
    assert [shop.result(shop.send("fetch", order, message_id=order)) for _ in range(2)] == [order] * 2
    assert shop.settings.count("fetch", order) == 1


def test_an_actor_calls_others_as_functions_without_protection(shop, order):
    assert shop.result(shop.send("ship", kwargs={"order": order})) == f"shipped {order}"
    assert shop.result(shop.send("outer", order)) == [[order, 0], f"shipped {order}"]
    assert [shop.settings.count(name, order) for name in ("outer", "charge", "ship")] == [1, 1, 2]


@row("without a key (`key=` gives None)", "the same: `MissingKeyError`")
def test_a_message_without_a_key_fails(shop):
    message = shop.send("ship", kwargs={"order": None})
    assert failure(shop, message) == "MissingKeyError"
    assert not shop.settings.count("ship", "None")


@row(
    "done before, and its result is not stored",
    "dead-letters it without a retry: `ResultNotStoredError`; it does not run again",
)
def test_a_duplicate_without_a_stored_result_fails(shop, order):
    assert shop.result(shop.send("count", order, message_id=order)) == 1
    assert failure(shop, shop.send("count", order, message_id=order)) == "ResultNotStoredError"
    assert shop.settings.count("count", order) == 1


@row("raising an error", "its own error: `max_retries`, `retry_when` and `throws` decide; the key is free")
def test_a_failed_message_has_its_own_error_and_may_run_again(shop, order):
    for times in (2, 4):
        assert failure(shop, shop.send("refuse", order, message_id=order)) == "ZeroDivisionError"
        assert shop.settings.count("refuse", order) == times


@row(
    "raising `Retry`, `RateLimitExceeded` or `SkipMessage`",
    "what it does with it; no failed attempt, the key is free",
)
def test_what_an_actor_answers_reaches_dramatiq(shop, order):
    assert shop.result(shop.send("again", order)) == 1
    assert shop.settings.count("again", order) == 2


@row("stopped by `TimeLimitExceeded` or `Shutdown`", "retries it; the key is free")
def test_an_interrupted_actor_runs_again(shop, order):
    assert shop.result(shop.send("slow", order)) == "ended"
    assert shop.settings.count("slow", order) == 2


@pytest.mark.slow
def test_an_actor_that_is_interrupted_by_the_end_of_its_worker_runs_again(settings, order):
    with opened(settings) as shop:
        with worker(settings):
            message = shop.send("stopped", order)
            until(lambda: shop.settings.count("stopped", order) == 1, "a run")
        with worker(settings):
            assert shop.result(message) == "ended"
            assert shop.settings.count("stopped", order) == 2


@row(
    "running now, in another worker",
    "skips it; it is sent again with a delay of up to 5 s, and the same `retries`",
)
def test_a_running_message_comes_again_without_using_up_retries(shop, order):
    with held(shop.checker, "charge", order):
        message = shop.send("charge", order, message_id=order)
        with pytest.raises(ResultMissing):
            shop.result(message, timeout_s=4)
    assert shop.result(message) == [order, 0]
    assert shop.settings.count("charge", order) == 1
    assert not [line for line in shop.settings.lines() if line.startswith(f"failed {order}")]


@row(
    'dead, or its effect is unknown (`on_expired_lease="park"`)',
    "dead-letters it without a retry: `DeadKeyError`",
)
def test_a_dead_key_fails(shop, order):
    bury(shop.checker, "charge", order)
    assert failure(shop, shop.send("charge", order, message_id=order)) == "DeadKeyError"
    assert not shop.settings.count("charge", order)


@pytest.mark.slow
@row("received while the store does not answer", "the same; an actor never runs without protection")
def test_while_the_store_is_away_a_message_comes_again_without_using_up_retries(settings, redis_url, order):
    with proxied(redis_url) as (proxy, behind):
        settings = replace(settings, url=behind)
        with opened(settings) as shop, worker(settings):
            assert shop.result(shop.send("charge", "warm")) == ["warm", 0]
            proxy.refuse()
            proxy.cut()
            message = shop.send("charge", order, message_id=order)
            with pytest.raises(ResultMissing):
                shop.result(message, timeout_s=4)
            proxy.recover()
            assert shop.result(message) == [order, 0]
            assert shop.settings.count("charge", order) == 1


def test_the_page_has_these_rows():
    assert row.on_page() == row.proved
