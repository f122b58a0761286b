"""A batch handler gets the fresh messages of a group in one call."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session

from idempotent import Outcome, Registry
from tests.processing.shop import message, messages, outcomes


def test_a_batch_handler_gets_the_fresh_messages_in_one_call(shop):
    consumer = shop.consumer(batch=True)
    consumer.process_many(messages("done"))
    shop.calls.clear()
    with shop.held(consumer, message("held"), "row"):
        results = consumer.process_many(messages("b", "done", "a", "b", None, "held", "c"))
    assert outcomes(results) == [
        "processed",
        "duplicate",
        "processed",
        "duplicate",
        "rejected",
        "in_progress",
        "processed",
    ]
    assert shop.calls == [["b", "a", "c"]]


def test_a_failed_batch_is_tried_one_by_one_and_burns_no_attempt_of_the_innocent(shop):
    consumer = shop.consumer(batch=True, max_attempts=1)
    results = consumer.process_many([message("1"), message("2", "ValueError"), message("3")])
    assert outcomes(results) == ["processed", "dead", "processed"], "max_attempts=1: one burnt would be death"
    assert shop.calls == [["1", "2", "3"], ["1"], ["2"], ["3"]]
    if shop.transactional:
        assert shop.effects() == {"1": 1, "3": 1}
    assert outcomes(consumer.process_many(messages("1", "3"))) == ["duplicate"] * 2


def test_a_batch_that_fails_as_a_whole_only_has_no_guilty_message(shop):
    seen = []
    make = Registry().consumer("orders", checker=shop.checker, batch=True, max_attempts=1)

    def handle(given):
        seen.append(len(given))
        if len(given) > 1:
            raise ValueError("too many")

    def handle_in_session(given, session: Session):
        handle(given)

    consumer = shop.decorated(make, handle_in_session if shop.transactional else handle)
    assert outcomes(consumer.process_many(messages("1", "2"))) == ["processed"] * 2
    assert seen == [2, 1, 1]


def test_a_harmless_exception_of_a_batch_is_harmless_only_for_its_own_message(shop):
    consumer = shop.consumer(batch=True)
    results = consumer.process_many([message("1"), message("2", "KeyError"), message("3")])
    assert outcomes(results) == ["processed", "ignored", "processed"]
    assert outcomes(consumer.process_many(messages("1", "2", "3"))) == ["duplicate"] * 3


def test_a_single_message_of_a_batch_handler_comes_as_a_list_of_one(shop):
    consumer = shop.consumer(batch=True)
    assert consumer.process(message("1")).outcome is Outcome.PROCESSED
    assert outcomes(consumer.process_many(messages("2"))) == ["processed"]
    assert shop.calls == [["1"], ["2"]]


def test_an_interrupted_batch_is_free_again(shop):
    consumer = shop.consumer(batch=True, max_attempts=1)
    with pytest.raises(KeyboardInterrupt):
        consumer.process_many([message("1"), message("2", "KeyboardInterrupt")])
    assert outcomes(consumer.process_many(messages("1", "2"))) == ["processed"] * 2
