"""Which offsets are committed, and when."""

import secrets
import time

import pytest
from confluent_kafka import Message as KafkaMessage
from confluent_kafka import Producer

from idempotent import Outcome, Result
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.adapters.kafka.commits import offsets_of
from idempotent.adapters.kafka.partition import Partition, limits_of
from idempotent.adapters.kafka.topics import TopicId
from idempotent.checkers import AttemptChecker, MemoryChecker
from idempotent.observe import counters
from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.member import ACK, GROUP, nothing_comes, receive, send, working
from tests.adapters.kafka.test_contract import lose_partitions


def test_an_offset_is_committed_only_when_all_before_it_are_settled(broker, topic, opened):
    send(broker, topic, 4)
    adapter = opened(topic, ordering="none")
    first, second, third, _ = receive(adapter, 4)
    adapter.settle(second, ACK)
    adapter.settle(third, ACK)
    adapter.close()
    assert broker.committed(GROUP, topic) is None
    adapter = opened(topic, ordering="none")
    first, second, third, fourth = receive(adapter, 4)
    for delivery in (fourth, second, first):
        adapter.settle(delivery, ACK)
    adapter.close()
    assert broker.committed(GROUP, topic) == 2


@pytest.mark.parametrize(
    "options", [{"commit_interval_s": 0.1}, {"commit_interval_s": 999, "commit_every": 3}]
)
def test_commits_come_by_time_and_by_number(broker, topic, opened, options):
    send(broker, topic, 3)
    adapter = opened(topic, **options)
    for _ in range(3):
        (delivery,) = receive(adapter)
        adapter.settle(delivery, ACK)
    nothing_comes(adapter)
    assert broker.committed(GROUP, topic) == 3


def test_offsets_with_gaps_are_no_trouble(broker, topic, opened):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for aborts in (False, True, False):
        producer.begin_transaction()
        for number in range(2):
            producer.produce(topic, str(number + 10 * aborts).encode())
        producer.flush()
        producer.abort_transaction() if aborts else producer.commit_transaction()
    adapter = opened(topic)
    seen = []
    for _ in range(4):
        (delivery,) = receive(adapter)
        seen.append(delivery.message.position.offset)
        assert int(delivery.message.body) < 10
        adapter.settle(delivery, ACK)
    assert seen == [0, 1, 6, 7]
    adapter.close()
    assert broker.committed(GROUP, topic) == 8
    nothing_comes(opened(topic))


@pytest.mark.parametrize("semantics", ["at_least_once", "exactly_once"])
def test_offsets_that_compaction_took_away_are_no_trouble(broker, opened, semantics):
    topic = f"orders-{secrets.token_hex(6)}"
    soon = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0"}
    broker.make(topic, **{"cleanup.policy": "compact", **soon})
    for number in range(40):
        broker.send(topic, str(number).encode(), key=b"few" if number % 10 else str(number))
    broker.flush()

    def is_compacted():
        time.sleep(0.2)
        broker.send(topic, b"40", key="last")  # begins a new segment; the newest one is never compacted
        broker.flush()
        return len(broker.read_raw(topic)) < 20

    until(is_compacted, "gaps")
    checker = AttemptChecker() if semantics == "exactly_once" else MemoryChecker()
    seen = []
    adapter = KafkaAdapter(broker.bootstrap, semantics=semantics, ordering="none", commit_interval_s=0.1)
    with working(adapter, topic, lambda message: seen.append(message.position), checker=checker):
        end = broker.read_raw(topic)[-1].offset() + 1
        until(lambda: broker.committed(GROUP, topic) == end, "all offsets")
    offsets = [position.offset for position in seen]
    assert offsets != list(range(offsets[0], offsets[0] + len(offsets)))
    assert {0, 10, 20, 30, 39} <= set(offsets)


@pytest.mark.parametrize(
    ("outcome", "again", "letters", "committed"),
    [
        (Outcome.PROCESSED, 0, 0, 1),
        (Outcome.DUPLICATE, 0, 0, 1),
        (Outcome.IGNORED, 0, 0, 1),
        (Outcome.FAILED, 1, 0, None),
        (Outcome.DEAD, 0, 1, 1),
        (Outcome.REJECTED, 0, 1, 1),
    ],
)
def test_what_becomes_of_each_outcome(broker, topic, opened, outcome, again, letters, committed):
    send(broker, topic, 1)
    adapter = opened(topic)
    (delivery,) = receive(adapter)
    adapter.settle(delivery, Result(outcome, error=ValueError("no"), retry_after_s=0.0))
    seen = []
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        seen += adapter.receive(5, 0.1)
    adapter.close()
    assert len(seen) == again
    assert len(broker.read(f"{topic}.dlq")) == letters
    assert broker.committed(GROUP, topic) == committed


def test_offsets_of_records_that_have_no_leader_epoch_are_committed():
    partition = Partition(TopicId("orders", "an id"), 0, limits_of("none", None, 10, 1000), "orders")
    partition.add(KafkaMessage(topic="orders", partition=0, offset=3, value=b""), 3)
    (tp,) = offsets_of({partition: 4})
    assert (tp.offset, tp.leader_epoch) == (4, None)


def test_held_messages_are_the_workers_affair(broker, topic, opened):
    send(broker, topic, 1)
    adapter = opened(topic)
    (delivery,) = receive(adapter)
    for outcome in (Outcome.IN_PROGRESS, Outcome.UNAVAILABLE):
        with pytest.raises(ValueError, match="HOLD"):
            adapter.settle(delivery, Result(outcome))


def test_at_most_once_commits_before_the_handler_and_forgets_failures(broker, topic, opened):
    send(broker, topic, 3)
    adapter = opened(topic, semantics="at_most_once", ordering="none")
    first, _ = receive(adapter, 2)
    adapter.settle(first, ACK)
    assert broker.committed(GROUP, topic) == 2
    lose_partitions(adapter)
    (third,) = receive(adapter)
    assert third.message.body == b"2"
    adapter.settle(third, Result(Outcome.FAILED, retry_after_s=0.0))
    nothing_comes(adapter)


def test_a_stop_in_order_leaves_nothing_finished_to_come_again(broker, topic):
    send(broker, topic, 50)
    done, checker = [], MemoryChecker()

    def handle(message):
        time.sleep(0.01)
        done.append(message.id)

    def adapter():
        return KafkaAdapter(broker.bootstrap, ordering="none", commit_interval_s=999)

    with working(adapter(), topic, handle, checker=checker, concurrency=4):
        until(lambda: len(done) > 10, "some effects")
    so_far = broker.committed(GROUP, topic)
    assert so_far == len(done)
    with working(adapter(), topic, handle, checker=checker, concurrency=4):
        until(lambda: len(done) == 50, "the rest")
    assert counters.snapshot().get((f"{topic}:{GROUP}", Outcome.DUPLICATE), 0) == 0
    assert broker.committed(GROUP, topic) == 50
