"""What dramatiq does with each outcome: the table of docs/dramatiq.md, with a real worker."""

from __future__ import annotations

import secrets
import threading
from contextlib import closing, contextmanager

import dramatiq
import pytest
import sqlalchemy as sa
from dramatiq.results import ResultFailure, ResultMissing

from idempotent import Message, idempotent
from idempotent.testing.adapter_contract import until
from idempotent.testing.proxy import Proxy
from tests.adapters.dramatiq_plugin.shop import DEADLINE_S, Settings, opened, replace, worker
from tests.project.house import ROOT
from tests.support.tables import new_name

ROWS: set[tuple[str, str]] = set()


@pytest.fixture(scope="module")
def shop(redis_url, tmp_path_factory):
    """A broker with a worker."""
    ran = tmp_path_factory.mktemp("dramatiq") / "ran"
    queue = f"dramatiq-{secrets.token_hex(6)}"
    settings = Settings(redis_url, redis_url, queue, str(ran), redis_url, new_name())
    with opened(settings) as shop, worker(settings):
        yield shop


def runs(shop, *words):
    return shop.settings.lines().count(" ".join(words))


def failure(shop, message):
    """The type of the error with which a message has failed for good."""
    with pytest.raises(ResultFailure) as caught:
        shop.result(message)
    until(lambda: message.message_id in shop.dead(), "a dead letter")
    return caught.value.orig_exc_type


@contextmanager
def held(shop, name, key):
    """Another process runs the actor, and fails in the end."""
    began, end = threading.Event(), threading.Event()

    def run():
        began.set()
        end.wait(DEADLINE_S)
        raise InterruptedError

    consumer = shop.broker.get_actor(name)._consumer
    thread = threading.Thread(target=consumer.process, args=(Message(name, id=key),), kwargs={"call": run})
    thread.start()
    assert began.wait(DEADLINE_S)
    try:
        yield
    finally:
        end.set()
        thread.join()


def row(cells):
    """The row of the table that a test proves."""

    def decorate(test):
        ROWS.add(cells)
        return test

    return decorate


@row(("new", "stores the result; pipeline, `on_success` and group go on"))
@row(
    (
        "done before",
        "stores the stored result; pipeline, `on_success` and group go on again, a pipeline under the same ids",
    )
)
def test_a_new_message_and_a_duplicate_have_the_result_and_the_follow_up(shop, order):
    tail = shop.message("tail", message_id=f"{order}-tail")
    piped = shop.pipeline(shop.message("charge", order, message_id=order), tail)
    for tails in (1, 2):
        piped.run()
        assert shop.result(piped.messages[0]) == [order, 0]
        until(lambda tails=tails: runs(shop, "tail", str([order, 0])) == tails, "the follow-up")
    assert runs(shop, "charge", order) == 1


def test_a_protected_actor_at_the_end_of_a_pipeline_runs_once(shop, order):
    last = shop.message("count", message_id=f"{order}-tail", store_results=False)
    piped = shop.pipeline(shop.message("charge", order, message_id=order), last)
    for _ in range(2):
        piped.run()
        assert shop.result(piped.messages[0]) == [order, 0]
    until(lambda: f"{order}-tail" in shop.dead(), "the second delivery, whose result is not stored")
    assert runs(shop, "count", str([order, 0])) == 1


def test_the_callback_of_a_group_is_started(shop, order):
    group = dramatiq.group(
        [shop.message("charge", f"{order}-{number}") for number in range(3)], broker=shop.broker
    )
    group.add_completion_callback(shop.message("grouped", order))
    group.run()
    until(lambda: runs(shop, "grouped", order) == 1, "the callback")
    assert [runs(shop, "charge", f"{order}-{number}") for number in range(3)] == [1] * 3


def test_the_key_may_be_an_argument(shop, order):
    answers = [shop.result(shop.send("ship", kwargs={"order": order})) for _ in range(2)]
    assert answers == [f"shipped {order}"] * 2
    assert runs(shop, "ship", order) == 1


def test_an_async_def_runs_once(shop, order):
    assert [shop.result(shop.send("fetch", order, message_id=order)) for _ in range(2)] == [order] * 2
    assert runs(shop, "fetch", order) == 1


def test_an_actor_calls_others_as_functions_without_protection(shop, order):
    assert shop.result(shop.send("ship", kwargs={"order": order})) == f"shipped {order}"
    assert shop.result(shop.send("outer", order)) == [[order, 0], f"shipped {order}"]
    assert [runs(shop, name, order) for name in ("outer", "charge", "ship")] == [1, 1, 2]


@row(("without a key (`key=` gives None)", "the same: `MissingKeyError`"))
def test_a_message_without_a_key_fails(shop):
    message = shop.send("ship", kwargs={"order": None})
    assert failure(shop, message) == "MissingKeyError"
    assert not runs(shop, "ship", "None")


@row(
    (
        "done before, and its result is not stored",
        "dead-letters it without a retry: `ResultNotStoredError`; it does not run again",
    )
)
def test_a_duplicate_without_a_stored_result_fails(shop, order):
    assert shop.result(shop.send("count", order, message_id=order)) == 1
    assert failure(shop, shop.send("count", order, message_id=order)) == "ResultNotStoredError"
    assert runs(shop, "count", order) == 1


@row(("raising an error", "its own error: `max_retries`, `retry_when` and `throws` decide; the key is free"))
def test_a_failed_message_has_its_own_error_and_may_run_again(shop, order):
    for times in (2, 4):
        assert failure(shop, shop.send("refuse", order, message_id=order)) == "ZeroDivisionError"
        assert runs(shop, "refuse", order) == times


@row(
    (
        "raising `Retry`, `RateLimitExceeded` or `SkipMessage`",
        "what it does with it; no failed attempt, the key is free",
    )
)
def test_what_an_actor_answers_reaches_dramatiq(shop, order):
    assert shop.result(shop.send("again", order)) == 1
    assert runs(shop, "again", order) == 2


@row(("stopped by `TimeLimitExceeded` or `Shutdown`", "retries it; the key is free"))
def test_an_interrupted_actor_runs_again(shop, order):
    assert shop.result(shop.send("slow", order)) == "ended"
    assert runs(shop, "slow", order) == 2


@pytest.mark.slow
def test_an_actor_that_is_interrupted_by_the_end_of_its_worker_runs_again(settings, order):
    with opened(settings) as shop:
        with worker(settings):
            message = shop.send("stopped", order)
            until(lambda: runs(shop, "stopped", order) == 1, "a run")
        with worker(settings):
            assert shop.result(message) == "ended"
            assert runs(shop, "stopped", order) == 2


@row(
    (
        "running now, in another worker",
        "skips it; it is sent again with a delay of up to 5 s, and the same `retries`",
    )
)
def test_a_running_message_comes_again_without_using_up_retries(shop, order):
    with held(shop, "charge", order):
        message = shop.send("charge", order, message_id=order)
        with pytest.raises(ResultMissing):
            shop.result(message, timeout_s=4)
    assert shop.result(message) == [order, 0]
    assert runs(shop, "charge", order) == 1
    assert not [line for line in shop.settings.lines() if line.startswith(f"failed {order}")]


@row(
    (
        'dead, or its effect is unknown (`on_expired_lease="park"`)',
        "dead-letters it without a retry: `DeadKeyError`",
    )
)
def test_a_dead_key_fails(shop, order):
    def refuse(order):
        raise ZeroDivisionError

    declare = idempotent(shop.checker, name="charge", group="tests", key="order", dead_for=ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        declare(refuse)(order)
    assert failure(shop, shop.send("charge", order, message_id=order)) == "DeadKeyError"
    assert not runs(shop, "charge", order)


@pytest.mark.slow
@row(("received while the store does not answer", "the same; an actor never runs without protection"))
def test_while_the_store_is_away_a_message_comes_again_without_using_up_retries(settings, redis_url, order):
    url = sa.make_url(redis_url)
    with closing(Proxy(url.host, url.port)) as proxy:
        behind = url.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
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
            assert runs(shop, "charge", order) == 1


def test_the_page_has_these_rows():
    page = (ROOT / "docs" / "dramatiq.md").read_text()
    table = page.partition("| a message that is |")[2].partition("\n\n")[0].splitlines()[2:]
    assert {tuple(cell.strip() for cell in line.strip("| ").split(" | ")) for line in table} == ROWS
