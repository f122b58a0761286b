"""What the common face of all adapters refuses, whichever broker is behind it."""

import pytest

from idempotent.adapters import Delivery, FileAdapter, MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker
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
