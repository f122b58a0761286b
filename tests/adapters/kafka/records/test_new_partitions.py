"""Partitions for which the group has no offset, with `auto.offset.reset=latest`."""

import secrets

import pytest

from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.member import ACK, bodies, nothing_comes, receive
from tests.support.logs import logged

LATEST = {"auto.offset.reset": "latest", "topic.metadata.refresh.interval.ms": 300}


@pytest.fixture
def group():
    return f"group-{secrets.token_hex(6)}"


@pytest.fixture
def join(opened, group):
    """`join(topic)`: a member of the group, which begins with the next new record."""

    def join_(topic, *, own=(), **options):
        config = {**LATEST, **dict(own)}
        return opened(topic, group=group, ordering="none", consumer_config=config, **options)

    return join_


def send(broker, topic, partition, *numbers):
    for number in numbers:
        broker.send(topic, b"%d" % number, partition=partition)
    broker.flush()


def polled(condition, what, *members):
    until(lambda: [member.receive(0, 0.05) for member in members] and condition(), what)


def has_begun(broker, group, topic, *partitions):
    return lambda: all(broker.committed(group, topic, number) is not None for number in partitions)


STRATEGIES = pytest.mark.parametrize(
    "own",
    [
        pytest.param({}, id="cooperative"),
        pytest.param({"partition.assignment.strategy": "range"}, id="eager", marks=pytest.mark.slow),
        pytest.param({"group.protocol": "consumer"}, id="KIP-848", marks=pytest.mark.slow),
    ],
)


@STRATEGIES
def test_partitions_that_are_added_while_the_group_lives_are_read_from_their_beginning(
    broker, topic, group, join, own, caplog
):
    caplog.set_level("INFO")
    send(broker, topic, 0, 1, 2)
    member = join(topic, own=own)
    polled(has_begun(broker, group, topic, 0), "a beginning", member)
    broker.add_partitions(topic, 3)
    send(broker, topic, 0, 3)
    send(broker, topic, 1, 4, 5)
    send(broker, topic, 2, 6)
    assert sorted(bodies(receive(member, 4))) == [3, 4, 5, 6]
    nothing_comes(member, 0.3)
    told = logged(caplog, "partitions_are_new")
    assert {name for record in told for name in record.partitions} == {f"{topic}/1", f"{topic}/2"}


def test_a_worker_that_starts_after_they_were_added_reads_them_too(broker, topic, group, join):
    first = join(topic)
    polled(has_begun(broker, group, topic, 0), "a beginning", first)
    first.close()
    broker.add_partitions(topic, 2)
    send(broker, topic, 1, 1, 2)
    assert bodies(receive(join(topic), 2)) == [1, 2]


def test_what_is_sent_while_nobody_is_there_is_read_though_nothing_was_before(broker, topic, group, join):
    send(broker, topic, 0, 1, 2)
    first = join(topic)
    polled(has_begun(broker, group, topic, 0), "a beginning", first)
    first.close()
    send(broker, topic, 0, 3)
    assert bodies(receive(join(topic))) == [3]


@STRATEGIES
def test_members_that_start_together_begin_at_one_place(broker, group, join, own):
    topic = f"orders-{secrets.token_hex(6)}"
    broker.make(topic, 4)
    for number in range(4):
        send(broker, topic, number, 1)
    members = [join(topic, own=own), join(topic, own=own)]
    polled(has_begun(broker, group, topic, *range(4)), "a beginning", *members)
    for number in range(4):
        send(broker, topic, number, 10 + number)
    came = []

    def all_came():
        for member in members:
            for delivery in member.receive(10, 0.05):
                came.append(int(delivery.message.body))
                member.settle(delivery, ACK)
        return {10, 11, 12, 13} <= set(came)

    until(all_came, "one new record of each partition")
    assert set(came) == {10, 11, 12, 13}


def test_a_topic_that_is_made_while_a_worker_waits_for_it_is_read_from_its_beginning(broker, join, caplog):
    topic = f"orders-{secrets.token_hex(6)}"
    member = join(topic)
    polled(lambda: logged(caplog, "kafka_waits"), "a warning", member)
    broker.make(topic, 2)
    send(broker, topic, 0, 1)
    send(broker, topic, 1, 2)
    assert sorted(bodies(receive(member, 2))) == [1, 2]


def test_copies_that_wait_in_a_retry_topic_are_read_by_a_group_that_was_not_there(broker, topic, group, join):
    retry_topic = f"{topic}.{group}.retry"
    broker.make(retry_topic)
    send(broker, retry_topic, 0, 1)
    assert bodies(receive(join(topic, retry_topic=True))) == [1]
