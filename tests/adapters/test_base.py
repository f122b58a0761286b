"""What the common face of all adapters refuses, whichever broker is behind it."""

import pickle
from typing import ClassVar

import pytest

from idempotent.adapters import Delivery, FileAdapter, MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.errors import AdapterError, PublishError
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.registry import Registry


@pytest.fixture
def broker():
    return MemoryBroker()


@pytest.fixture
def adapter(broker):
    registry = Registry()
    consumer = registry.consumer("orders", checker=MemoryChecker())(lambda _: None)
    adapter = MemoryAdapter(broker)
    adapter.open([consumer])
    broker.publish(Message("orders", id="m-1"))
    return adapter


@pytest.mark.parametrize("outcome", [Outcome.IN_PROGRESS, Outcome.UNAVAILABLE])
def test_a_delivery_to_hold_cannot_be_settled_and_stays_unsettled(adapter, broker, outcome):
    (delivery,) = adapter.receive(1, 0.0)
    with pytest.raises(ValueError, match="HOLD is handled by the Worker"):
        adapter.settle(delivery, Result(outcome, retry_after_s=1.0))
    assert broker.backlog("orders") == 1
    adapter.settle(delivery, Result(Outcome.PROCESSED))
    assert (broker.backlog("orders"), adapter.stale_settlements) == (0, 0)


@pytest.mark.parametrize("token", [None, "7", (1, 0)])
def test_a_delivery_of_another_adapter_is_refused_and_not_counted_as_stale(adapter, tmp_path, token):
    strange = Delivery(Message("orders", id="m-1"), token)
    for refusing in (adapter, FileAdapter(tmp_path / "orders.jsonl")):
        with pytest.raises(TypeError, match="another adapter"):
            refusing.settle(strange, Result(Outcome.PROCESSED))
        with pytest.raises(TypeError, match="another adapter"):
            refusing.requeue(strange)
        assert refusing.stale_settlements == 0


class Scripted(MemoryAdapter):
    """Raises the errors that it was given, by message id."""

    errors: ClassVar = {}

    def publish(self, message):
        if message.id in self.errors:
            raise self.errors[message.id]
        super().publish(message)


def scripted(broker, **errors):
    adapter = Scripted(broker)
    adapter.errors = errors
    return adapter


def test_an_adapter_that_publishes_one_by_one_names_what_was_refused_and_goes_on(broker):
    adapter = scripted(
        broker,
        b=PublishError("no", refused={0: "no room"}),
        d=PublishError("no", unknown={0: "no answer"}),
    )
    with pytest.raises(PublishError) as raised:
        adapter.publish_many([Message("orders", id=name) for name in "abcde"])
    assert (raised.value.refused, raised.value.unknown) == ({1: "no room"}, {3: "no answer"})
    assert broker.backlog("orders") == 3
    assert str(raised.value) == (
        "2 of 5 messages are not confirmed: message 'b' for 'orders' was refused: no room; "
        "message 'd' for 'orders' is not confirmed: no answer"
    )


def test_what_follows_another_error_is_unknown_and_before_the_first_message_the_error_is_raised(broker):
    adapter = scripted(broker, c=AdapterError("gone"))
    with pytest.raises(PublishError) as raised:
        adapter.publish_many([Message("orders", id=name) for name in "abcd"])
    assert (raised.value.refused, raised.value.unknown) == ({}, {2: "gone", 3: "gone"})
    with pytest.raises(AdapterError, match=r"^gone$"):
        adapter.publish_many([Message("orders", id=name) for name in "cd"])
    assert broker.backlog("orders") == 2


def test_the_error_of_many_messages_names_three_and_counts_the_others(broker):
    adapter = scripted(broker, **{str(number): PublishError("no", refused={0: "no"}) for number in range(5)})
    with pytest.raises(PublishError, match=r"'2' for 'orders' was refused: no; and 2 more$"):
        adapter.publish_many([Message("orders", id=str(number)) for number in range(6)])


def test_the_reasons_of_a_publish_error_show_no_password_and_survive_pickling():
    error = PublishError("no", refused={1: "amqp://me:secret@host"}, unknown={2: "redis://:secret@host"})
    assert "secret" not in repr((error.refused, error.unknown))
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.refused, copied.unknown) == (error.refused, error.unknown)
