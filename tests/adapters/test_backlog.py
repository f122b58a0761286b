"""How many messages wait in a broker, as its adapter tells a worker."""

import time
from collections.abc import Mapping

import pytest

from idempotent import Message, Registry
from idempotent.checkers import MemoryChecker
from tests.adapters.conformance_child import GROUP
from tests.adapters.places import open_place

pytestmark = pytest.mark.slow
FIRST, MORE, WAIT_S = 3000, 500, 60.0


@pytest.fixture(params=["rabbitmq", "kafka"])
def place(request):
    yield from open_place(request.param, request)


def test_what_waits_grows_while_nothing_is_received(place):
    subject = place.subject()
    registry = Registry()
    consumer = registry.consumer(subject, group=GROUP, checker=MemoryChecker())(lambda _: None)
    place.send(*(Message(subject, b"x", id=str(number)) for number in range(FIRST)))
    adapter = place.adapter()
    adapter.capacity = 10
    adapter.open([consumer])
    try:
        received = []
        until = time.monotonic() + WAIT_S
        while not received and time.monotonic() < until:
            received += adapter.receive(1, 0.5)
        adapter.full_subjects = {subject}

        def backlog():
            adapter.receive(0, 0.1)
            waiting = adapter.backlog()[subject]
            return sum(waiting.values()) if isinstance(waiting, Mapping) else waiting

        before = backlog()
        assert 0 < before <= FIRST
        place.send(*(Message(subject, b"x", id=f"more-{number}") for number in range(MORE)))
        while backlog() != before + MORE and time.monotonic() < until:
            time.sleep(0.2)
        assert backlog() == before + MORE
    finally:
        adapter.close()
