"""A stored result that cannot be read: its message is a duplicate all the same."""

from __future__ import annotations

import asyncio
import functools

import pytest

from idempotent import Message, Outcome, Registry
from idempotent.claims import Completion
from tests.support.logs import events
from tests.support.stores import SHARED, open_store

GIVEN = Message("orders", id="1")


@pytest.fixture(params=SHARED)
def checker(request):
    for store in open_store(request.param, request):
        yield store.leased()


@pytest.mark.parametrize("stored", [b"<xml/>", b"[" * 100_000 + b"]" * 100_000], ids=["no JSON", "too deep"])
def test_a_result_that_cannot_be_read_leaves_a_duplicate_without_it(checker, stored, caplog):
    def plain(_):
        raise AssertionError

    async def awaited(_):
        raise AssertionError

    make = functools.partial(Registry().consumer, "orders", store_result=True)
    plain = make(checker=checker)(plain)
    awaited = make(checker=checker, group="async")(awaited)
    for consumer in (plain, awaited):
        claim = checker.protocol.claim(consumer.binding.requests.of(GIVEN)).claim
        checker.protocol.complete_many([Completion(claim, stored)])
    results = [
        plain.process(GIVEN),
        *plain.process_many([GIVEN, Message("orders", id="1")]),
        asyncio.run(awaited.process(GIVEN)),
    ]
    assert [(result.outcome, result.value) for result in results] == [(Outcome.DUPLICATE, None)] * 4
    assert set(events(caplog)) == {"result_not_read"}
