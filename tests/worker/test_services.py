"""Services run with a worker: entered before the first message, left when it has drained."""

from contextlib import contextmanager

import pytest

from idempotent import Message, Registry, Worker
from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.errors import AdapterError, ConfigurationError


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


class Swallows:
    """Ends without an error, whatever happened inside."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return True


class Gone(MemoryAdapter):
    def receive(self, limit, timeout_s):
        raise AdapterError("the broker is gone")


@contextmanager
def refusing():
    raise AdapterError("the broker is gone")
    yield


@pytest.mark.parametrize(
    ("adapter", "services"),
    [(Gone, [Swallows()]), (MemoryAdapter, [Swallows(), refusing()])],
    ids=["while it works", "while it is entered"],
)
def test_a_service_cannot_hide_the_error_that_ended_the_worker(adapter, services):
    registry = Registry()
    registry.consumer("mail", checker=MemoryChecker())(lambda _: None)
    with pytest.raises(AdapterError, match="the broker is gone"):
        Worker(registry, adapter(MemoryBroker()), services=services).run()
