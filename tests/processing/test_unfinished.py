"""A handler that returns work instead of doing it has not processed its message."""

from __future__ import annotations

import asyncio
import functools
import io
import itertools
from collections import deque
from concurrent.futures import Future

import pytest

from idempotent import Message, Outcome, Registry
from idempotent.checkers import MemoryChecker
from idempotent.errors import ConfigurationError
from idempotent.observe import Observer


async def coroutine(_):
    pass


def calls_a_coroutine(message):
    return coroutine(message)


def generator(_):
    yield


async def async_generator(_):
    yield


class Later:
    def __await__(self):
        yield


def of_a_loop(_):
    loop = asyncio.new_event_loop()
    try:
        return loop.create_future()
    finally:
        loop.close()


PENDING = {
    "coroutine": calls_a_coroutine,
    "generator": generator,
    "async generator": async_generator,
    "generator expression": lambda message: (each for each in [message]),
    "map": lambda message: map(print, [message]),
    "filter": lambda message: filter(None, [message]),
    "future": lambda _: Future(),
    "future of asyncio": of_a_loop,
    "awaitable": lambda _: Later(),
    "starmap": lambda _: itertools.starmap(print, [("x",)]),
    "chain": lambda _: itertools.chain(map(print, "x")),
    "islice": lambda _: itertools.islice(map(print, "x"), 1),
    "zip": lambda _: zip(map(print, "x"), "y", strict=True),
    "enumerate": lambda _: enumerate(map(print, "x")),
    "partial": lambda _: functools.partial(print, "x"),
    "list of coroutines": lambda message: [coroutine(message), coroutine(message)],
    "tuple of futures": lambda _: (Future(),),
    "coroutine in a dictionary": lambda message: {"sent": [{"by": coroutine(message)}]},
    "deque of generators": lambda message: deque([generator(message)]),
}


def wrapped(function):
    @functools.wraps(function)
    def call(message):
        return function(message)

    return call


def consumer_of(handler, **options):
    return Registry(options.pop("observers", ())).consumer("orders", checker=MemoryChecker(), **options)(
        wrapped(handler)
    )


ONE, TWO = Message("orders", id="1"), Message("orders", id="2")


@pytest.mark.parametrize("observers", [[], [type("Watching", (Observer,), {"ran": lambda *_: None})()]])
@pytest.mark.parametrize("handler", PENDING.values(), ids=PENDING)
def test_it_fails_with_what_to_do_and_comes_again(handler, observers):
    consumer = consumer_of(handler, observers=observers)
    alone = consumer.process(ONE)
    group = consumer.process_many([ONE, TWO])
    for result in (alone, *group):
        assert (result.outcome, type(result.error)) == (Outcome.FAILED, ConfigurationError)
        assert "the handler returned a" in str(result.error)
    with pytest.raises(ConfigurationError):
        consumer(ONE)


@pytest.mark.parametrize("handler", PENDING.values(), ids=PENDING)
def test_a_batch_fails_with_it_too(handler):
    results = consumer_of(handler, batch=True).process_many([ONE, TWO])
    assert [result.outcome for result in results] == [Outcome.FAILED] * 2


@pytest.mark.parametrize(
    "returned",
    [
        None,
        0,
        "x",
        b"",
        [],
        {},
        range(3),
        {1},
        object(),
        ONE,
        Message,
        [1, "x"],
        ({"a": [None]},),
        iter([1]),
        io.StringIO(),
    ],
)
def test_what_is_finished_is_processed(returned):
    consumer = consumer_of(lambda _: returned)
    assert consumer.process(ONE).outcome is Outcome.PROCESSED


@pytest.mark.parametrize("answer", PENDING.values(), ids=PENDING)
def test_an_answer_about_a_lapsed_lease_that_is_not_finished_is_no_yes(answer):
    now, ran = [1e9], []
    checker = MemoryChecker(lease_s=1, clock=lambda: now[0])
    consumer = Registry().consumer("orders", checker=checker, on_expired_lease=wrapped(answer))(ran.append)
    checker._claim(consumer.binding.requests.of(ONE))
    now[0] += 2
    result = consumer.process(ONE)
    assert (result.outcome, type(result.error)) == (Outcome.UNAVAILABLE, ConfigurationError)
