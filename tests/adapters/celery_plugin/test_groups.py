"""Groups and chords whose members are delivered again: each member runs once, and so does the body."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery, chord, group
from celery.signals import before_task_publish

from idempotent.testing.adapter_contract import until
from tests.adapters.celery_plugin.shop import opened, replace, worker

pytestmark = pytest.mark.slow
DEADLINE_S = 120.0
VISIBILITY_S = 3.0
# Celery's Redis backend claims the start of a chord's body for about 20 s (`_chord_publish_claim_expires`): a member
# that is delivered again earlier starts nothing.
AFTER_THE_CLAIM_OF_THE_BODY_S = 40.0


@pytest.fixture
def orders():
    return [secrets.token_hex(6) for _ in range(2)]


@contextmanager
def recorded() -> Iterator[list[dict[str, Any]]]:
    """What this process publishes meanwhile."""
    sent: list[dict[str, Any]] = []

    def note(sender: Any = None, signal: Any = None, **message: Any) -> None:
        sent.append(message)

    before_task_publish.connect(note)
    yield sent
    before_task_publish.disconnect(note)


def deliver_again(app: Celery, messages: list[dict[str, Any]]) -> None:
    with app.producer_pool.acquire() as producer:
        for each in messages:
            where = {name: each[name] for name in ("exchange", "routing_key", "headers")}
            producer.publish(each["body"], serializer="json", **where, **each["properties"])


def charges(app: Celery, orders: list[str], seconds: float = 0.0) -> list[Any]:
    return [app.tasks["charge"].s(order, seconds) for order in orders]


def ran(settings: Any, task: str, value: Any) -> int:
    return settings.lines().count(f"{task} {value}")


def test_members_that_are_delivered_again_have_their_results_and_the_body_runs_once(settings, orders):
    results = [[order, 0] for order in orders]
    with opened(settings) as app, worker(settings, "threads"):
        with recorded() as sent:
            body = chord(charges(app, orders))(app.tasks["charge"].s())
        assert body.get(timeout=DEADLINE_S) == [results, 0]
        members = [member.id for member in body.parent]
        for member in body.parent:
            member.forget()
        deliver_again(app, sent)
        assert [app.AsyncResult(each).get(timeout=DEADLINE_S) for each in members] == results
        time.sleep(1)
    assert [ran(settings, "charge", order) for order in orders] == [1, 1]
    assert ran(settings, "charge", results) == 1


def test_killed_before_the_body_is_sent_the_body_still_runs(settings, orders):
    settings = replace(settings, visibility_s=AFTER_THE_CLAIM_OF_THE_BODY_S)
    results = [[order, 0] for order in orders]
    with opened(settings) as app:
        with worker(settings, dies="whole") as first:
            tail = chord(charges(app, orders))(app.tasks["tail"].s())
            assert first.wait(DEADLINE_S) == -signal.SIGKILL
        with worker(settings):
            tail.get(timeout=DEADLINE_S)
    assert [ran(settings, "charge", order) for order in orders] == [1, 1]
    assert ran(settings, "tail", results) == 1


def test_members_longer_than_the_visibility_timeout_run_once(settings, orders):
    """The plain task of the group runs several times, so copies were delivered."""
    settings = replace(settings, visibility_s=VISIBILITY_S)
    results = [[order, 0] for order in orders]
    with opened(settings) as app, worker(settings, "threads"), worker(settings, "threads"):
        plain = app.tasks["plain"].si(orders[0], 3 * VISIBILITY_S)
        found = group([*charges(app, orders, 3 * VISIBILITY_S), plain]).delay()
        body = chord(charges(app, orders, 3 * VISIBILITY_S))(app.tasks["charge"].s())
        assert body.get(timeout=DEADLINE_S)[0] == results
        assert found.get(timeout=DEADLINE_S) == [*results, None]
        until(lambda: ran(settings, "plain", orders[0]) > 1, "a copy of the plain task")
        time.sleep(2 * VISIBILITY_S)
    assert [ran(settings, "charge", order) for order in orders] == [2, 2]
    assert ran(settings, "charge", results) == 1
