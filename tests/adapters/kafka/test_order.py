"""OrderedQueues: what waits for what."""

import secrets
import time

import pytest

from idempotent import Outcome, Result
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.checkers import MemoryChecker, RedisChecker
from idempotent.policy import Backoff
from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.member import ACK, bodies, nothing_comes, receive, send, working


def test_with_the_ordering_partition_one_failure_holds_all_behind_it(broker, topic, opened):
    send(broker, topic, 3)
    adapter = opened(topic)
    (delivery,) = adapter_deliveries = receive(adapter)
    assert bodies(adapter_deliveries) == [0]
    nothing_comes(adapter, 0.3)
    adapter.settle(delivery, Result(Outcome.FAILED, retry_after_s=0.6))
    nothing_comes(adapter, 0.3)
    seen = []
    for _ in range(3):
        (delivery,) = receive(adapter)
        seen += bodies([delivery])
        adapter.settle(delivery, ACK)
    assert seen == [0, 1, 2]


def test_a_wider_lane_fills_batches_and_lets_nothing_past_a_failure(broker, topic, opened):
    send(broker, topic, 6)
    adapter = opened(topic, max_in_flight_per_partition=3)
    first, second, third = receive(adapter, 3)
    nothing_comes(adapter, 0.3)
    adapter.settle(second, Result(Outcome.FAILED, retry_after_s=0.3))
    adapter.settle(third, ACK)
    adapter.settle(first, ACK)
    assert bodies(receive(adapter, 3)) == [1, 3, 4]


def test_with_the_ordering_key_only_messages_of_that_key_wait(broker, topic, opened):
    for number, key in enumerate((b"a", b"a", b"b", None, None)):
        broker.send(topic, str(number).encode(), key)
    broker.flush()
    adapter = opened(topic, ordering="key")
    deliveries = receive(adapter, 4)
    assert sorted(bodies(deliveries)) == [0, 2, 3, 4]
    nothing_comes(adapter, 0.3)
    (first,) = (delivery for delivery in deliveries if delivery.message.body == b"0")
    adapter.settle(first, ACK)
    assert bodies(receive(adapter)) == [1]


@pytest.mark.parametrize("first", ["has its effect", "takes long", "is a duplicate"])
def test_most_messages_of_a_partition_wait_a_moment_for_its_first_effect(broker, topic, opened, first):
    """What is delivered before counts as redelivered, and a checker without leases counts it before it runs."""
    send(broker, topic, 100)
    adapter = opened(topic, max_in_flight_per_partition=100)
    deliveries = []
    while not deliveries:
        deliveries = adapter.receive(100, 1.0)
    assert bodies(deliveries) == list(range(10))
    if first == "has its effect":
        adapter.settle(deliveries[0], ACK)
        others = receive(adapter, 90)
    elif first == "takes long":
        others = receive(adapter, 90)
    else:
        for delivery in deliveries:
            adapter.settle(delivery, Result(Outcome.DUPLICATE))
        others = adapter.receive(100, 1.0)
        assert len(others) == 20
    assert {delivery.message.redelivered for delivery in deliveries} == {True}
    assert {delivery.message.redelivered for delivery in others} == {first != "has its effect"}


def test_no_more_than_the_limit_of_a_partition_is_out_at_once(broker, topic, opened):
    send(broker, topic, 5)
    adapter = opened(topic, ordering="none", max_in_flight_per_partition=2)
    first, _ = receive(adapter, 2)
    nothing_comes(adapter, 0.3)
    adapter.settle(first, ACK)
    assert bodies(receive(adapter)) == [2]


@pytest.mark.parametrize("shares_rounds", [False, True])
@pytest.mark.parametrize("ordering", ["partition", "key"])
def test_pauses_and_failures_keep_the_order_while_many_threads_work(
    broker, opened, redis_url, ordering, shares_rounds
):
    topic = f"orders-{secrets.token_hex(6)}"
    broker.make(topic, 3)
    keys = [f"customer-{number}".encode() for number in range(7)]
    for number in range(300):
        broker.send(topic, str(number).encode(), keys[number % 7])
    broker.flush()
    seen, failed = {}, set()

    def handle(message):
        time.sleep(secrets.randbelow(3) / 1000)
        number = int(message.body)
        if number % 50 == 0 and number not in failed:
            failed.add(number)
            raise ValueError
        seen.setdefault(message.raw.key(), []).append(number)

    adapter = KafkaAdapter(broker.bootstrap, ordering=ordering, max_pending_per_partition=10)
    checker = RedisChecker(redis_url, prefix=f"{topic}:") if shares_rounds else MemoryChecker()
    with working(adapter, topic, handle, checker=checker, concurrency=4, backoff=Backoff(0.05, 0.05)):
        until(lambda: sum(map(len, seen.values())) >= 300, "300 effects")
    checker.close()
    for numbers in seen.values():
        assert numbers == sorted(numbers)
    assert sum(map(len, seen.values())) == 300
    assert len(failed) == 6


def test_a_backlog_is_left_with_the_broker(broker, topic, opened):
    send(broker, topic, 5000)
    adapter = opened(topic, ordering="none", max_pending_per_partition=10, max_in_flight_per_partition=3)
    deliveries = receive(adapter, 3)
    nothing_comes(adapter, 1.0)
    (partition,) = adapter._group.assignment._turns
    assert len(partition._watermark) <= 10 + 2 * 500  # what one fetch brings comes on top
    seen = []
    while len(seen) < 5000:
        seen += bodies(deliveries)
        for delivery in deliveries:
            adapter.settle(delivery, ACK)
        deliveries = receive(adapter) if len(seen) < 5000 else []
    assert seen == list(range(5000))
