"""How many bytes of messages a process keeps."""

import pytest

from idempotent import Message, Outcome, Result
from idempotent.adapters.kafka.records import size_of
from idempotent.errors import ConfigurationError
from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.line import Line
from tests.adapters.kafka.member import ACK, receive

LARGE = 100_000
LIMIT = 10 * LARGE
# What comes in one answer of the broker, and lies in the client library meanwhile.
FETCH = {"fetch.max.bytes": 10 * LARGE, "queued.max.messages.kbytes": 1000, "message.max.bytes": 10 * LARGE}


@pytest.mark.slow
def test_received_messages_are_bounded_in_bytes_and_all_arrive(broker, topic, opened):
    for number in range(80):
        broker.send(topic, b"%d" % number + b" " * LARGE, key=b"customer")
    broker.flush()
    adapter = opened(topic, ordering="none", max_pending_bytes=LIMIT, consumer_config=FETCH)
    until(lambda: adapter.receive(0, 0.05) == [] and is_paused(adapter), "a pause")
    for _ in range(20):
        adapter.receive(0, 0.05)
    (partition,) = adapter._group.assignment._turns
    kept = sum(map(size_of, waiting(partition)))
    assert LIMIT <= kept <= LIMIT + 4 * FETCH["fetch.max.bytes"]
    for number in range(80):
        (delivery,) = receive(adapter)
        assert int(delivery.message.body) == number
        adapter.settle(delivery, ACK)
    assert partition.fill(1.0) == 0


def test_outputs_that_wait_for_their_transaction_count_too(broker):
    line = Line(broker)
    line.send(3)
    with line.opened(commit_interval_s=999, max_pending_bytes=1000) as adapter:
        (delivery,) = receive(adapter)
        large = Message(line.target, b"x" * 2000)
        adapter.settle(delivery, Result(Outcome.PROCESSED, value=large))
        (partition,) = adapter._group.assignment._turns
        assert partition.fill(1.0) >= 2


def test_a_share_of_the_bytes_is_at_least_one(opened):
    with pytest.raises(ConfigurationError, match="at least 1"):
        opened("orders", max_pending_bytes=0)


def is_paused(adapter):
    return any(partition.is_paused for partition in adapter._group.assignment._turns)


def waiting(partition):
    return [record.raw for lane in partition._queues._queues.values() for record in lane.waiting]
