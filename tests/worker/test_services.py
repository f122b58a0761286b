"""Services run with a worker: entered before the first message, left when it has drained."""

from contextlib import contextmanager

import pytest

from idempotent import Message, Registry, Worker
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.errors import ConfigurationError


def test_services_are_entered_before_the_first_message_and_left_last_first_after_the_last():
    events = []

    @contextmanager
    def service(name):
        events.append(f"{name} began")
        yield
        events.append(f"{name} ended")

    registry, broker = Registry(), MemoryBroker()
    registry.consumer("mail", checker=MemoryChecker())(lambda message: events.append(message.id))
    broker.publish(Message("mail", id="1"))
    adapter = MemoryAdapter(broker, until_empty=True)
    Worker(registry, adapter, services=[service("a"), service("b")]).run()
    assert events == ["a began", "b began", "1", "b ended", "a ended"]


@pytest.mark.parametrize("wrong", [object(), print, contextmanager])
def test_what_is_no_context_manager_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="context managers"):
        Worker(Registry(), MemoryAdapter(MemoryBroker()), services=[wrong])
