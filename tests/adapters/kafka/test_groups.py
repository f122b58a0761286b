"""Consumer groups and their rebalances."""

import secrets
import time

import pytest

from idempotent import Registry
from idempotent.adapters.copies import KEY_HEADER
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.checkers import MemoryChecker
from idempotent.errors import ConfigurationError
from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.member import ACK, GROUP, IMPATIENT, bodies, nothing, receive, send, working
from tests.adapters.kafka.test_contract import lose_partitions
from tests.adapters.kafka.through_proxy import through_proxy
from tests.support.logs import events


def test_two_groups_each_get_every_message(broker, topic, opened):
    send(broker, topic, 1)
    for group in ("billing", "mail"):
        (delivery,) = receive(opened(topic, group=group))
        assert delivery.message.body == b"0"


def test_a_message_has_its_effect_once_in_each_group_although_they_share_a_store(broker, topic):
    broker.send(topic, b"0", **{KEY_HEADER: "m-1"})
    broker.flush()
    done, checker = [], MemoryChecker()
    for group in ("billing", "mail", "billing"):
        adapter = KafkaAdapter(broker.bootstrap, commit_interval_s=0.1)
        with working(adapter, topic, lambda _, to=group: done.append(to), group=group, checker=checker):
            until(lambda to=group: broker.committed(to, topic) == 1, "a commit")
    assert done == ["billing", "mail"]


def test_consumers_of_two_groups_do_not_fit_one_adapter(kafka_bootstrap):
    registry = Registry()
    consumers = [
        registry.consumer(subject, group=subject, checker=MemoryChecker())(nothing) for subject in ("a", "b")
    ]
    with pytest.raises(ConfigurationError, match="one consumer group, but the consumers belong to a, b"):
        KafkaAdapter(kafka_bootstrap).open(consumers)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        {},
        {"partition.assignment.strategy": "range"},
        {"group.protocol": "consumer"},
    ],
    ids=["cooperative", "eager", "KIP-848"],
)
def test_workers_that_come_and_go_repeat_nothing_and_lose_nothing(broker, strategy, caplog):
    topic = f"orders-{secrets.token_hex(6)}"
    broker.make(topic, 4)
    send(broker, topic, 400)
    checker, done = MemoryChecker(lease_s=10.0), []

    def handle(message):
        time.sleep(0.01)
        done.append(message.id)

    def adapter():
        return KafkaAdapter(
            broker.bootstrap, ordering="none", commit_interval_s=0.1, consumer_config=strategy
        )

    first, second = adapter(), adapter()
    with working(first, topic, handle, checker=checker, concurrency=4):
        until(lambda: len(done) > 50, "the first effects")
        with working(second, topic, handle, checker=checker, concurrency=2):
            until(lambda: len(done) > 250, "more effects")
        until(lambda: len(done) >= 400, "all effects")
        time.sleep(0.3)
    assert len(done) == len(set(done)) == 400
    assert sum(broker.committed(GROUP, topic, number) or 0 for number in range(4)) == 400
    assert "commit_failed" not in events(caplog)


@pytest.mark.slow
def test_a_worker_that_is_stopped_while_it_joins_leaves_its_group(broker, topic, opened):
    group = f"group-{secrets.token_hex(6)}"
    with through_proxy(broker) as (proxy, bootstrap):
        proxy.delay(0.3)  # each step of joining takes this long
        adapter = opened(topic, group=group, bootstrap=bootstrap)
        until(
            lambda: adapter.receive(1, 0.02) == [] and broker.group(group) == ("COMPLETING_REBALANCING", 1),
            "a member that has not heard of its partitions",
        )
        adapter.close()
    assert broker.group(group) == ("EMPTY", 0)


def test_what_is_revoked_is_committed_as_far_as_it_is_finished(broker, topic, opened):
    send(broker, topic, 3)
    adapter = opened(topic, ordering="none", commit_interval_s=999)
    first, second, third = receive(adapter, 3)
    adapter.settle(first, ACK)
    adapter.settle(third, ACK)
    lose_partitions(adapter)
    assert bodies(receive(adapter, 2)) == [1, 2]
    assert broker.committed(GROUP, topic) == 1
    adapter.settle(second, ACK)
    adapter.requeue(second)
    assert adapter.stale_settlements == 2


@pytest.mark.slow
def test_what_is_lost_is_not_committed(broker, topic, opened, caplog):
    send(broker, topic, 2)
    adapter = opened(topic, ordering="none", commit_interval_s=999, consumer_config=IMPATIENT)
    first, second = receive(adapter, 2)
    adapter.settle(first, ACK)
    time.sleep(3)  # nobody polls, so the group gives the partition away
    assert bodies(receive(adapter, 2)) == [0, 1]
    assert broker.committed(GROUP, topic) is None
    assert "commit_failed" not in events(caplog)  # it was not even tried
    adapter.settle(second, ACK)
    assert adapter.stale_settlements == 1


@pytest.mark.slow
def test_a_handler_may_take_longer_than_the_group_waits_for_a_member(broker, topic):
    send(broker, topic, 1)
    done = []

    def handle(message):
        time.sleep(5)
        done.append(message.id)

    adapter = KafkaAdapter(broker.bootstrap, consumer_config=IMPATIENT)
    with working(adapter, topic, handle):
        until(lambda: done, "the effect")
        time.sleep(0.5)
    assert len(done) == 1
    assert adapter.stale_settlements == 0
    assert broker.committed(GROUP, topic) == 1
