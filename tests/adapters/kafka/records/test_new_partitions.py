"""Partitions for which the group has no offset, with `auto.offset.reset=latest`."""

import secrets

import pytest
from confluent_kafka import Consumer

from idempotent.checkers import AttemptChecker
from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.member import ACK, bodies, nothing_comes, receive
from tests.support.logs import logged

LATEST = {"auto.offset.reset": "latest", "topic.metadata.refresh.interval.ms": 300}


OLD = [100, 101, 102]


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


@pytest.fixture
def leave_to_it(broker, group):
    """`leave_to_it(topic, *partitions)`: the group's consumer by another client, which reads one record of each."""

    def work(topic, *partitions):
        own = {"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "latest"}
        consumer = Consumer({**own, "enable.partition.eof": True})
        consumer.subscribe([topic])
        came, ends = [], set()

        def has_read(count):
            if (raw := consumer.poll(0.05)) is not None and raw.error() is None:
                came.append(raw)
            elif raw is not None:
                ends.add(raw.partition())
            return len(came) == count

        try:
            until(lambda: has_read(0) and ends >= set(partitions), "the ends of the partitions")
            for number in partitions:
                send(broker, topic, number, 0)
            until(lambda: has_read(len(partitions)), "new records alone")
            consumer.commit(asynchronous=False)
        finally:
            consumer.close()

    return work


@pytest.mark.parametrize("used", [0, 1])
@pytest.mark.parametrize("members", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_old_records_that_another_client_skipped_stay_skipped_and_added_partitions_do_not(
    broker, group, join, leave_to_it, used, members
):
    topic = f"orders-{secrets.token_hex(6)}"
    broker.make(topic, 2)
    for number in (0, 1):
        send(broker, topic, number, *OLD)
    leave_to_it(topic, used)
    send(broker, topic, used, 1)
    joined = [join(topic) for _ in range(members)]
    came = []

    def all_came(*numbers):
        for member in joined:
            for delivery in member.receive(10, 0.05):
                came.append(int(delivery.message.body))
                member.settle(delivery, ACK)
        return set(numbers) <= set(came)

    until(lambda: all_came(1), "what was sent meanwhile")
    polled(has_begun(broker, group, topic, 0, 1), "a beginning of each partition", *joined)
    send(broker, topic, 1 - used, 2)
    until(lambda: all_came(2), "a new record of the idle partition")
    broker.add_partitions(topic, 3)
    send(broker, topic, 2, 3)
    until(lambda: all_came(3), "the first record of the new partition")
    assert sorted(came) == [1, 2, 3]


def test_a_partition_that_is_added_to_a_group_of_another_client_once_it_is_ours_is_read(
    broker, topic, group, join, leave_to_it
):
    leave_to_it(topic, 0)
    ours = join(topic)
    polled(lambda: broker.metadata(group, topic) == "idempotent", "the mark", ours)
    ours.close()
    broker.add_partitions(topic, 2)
    send(broker, topic, 1, 1)
    assert bodies(receive(join(topic))) == [1]


@pytest.mark.slow
def test_beside_a_member_that_does_not_say_where_it_began_no_old_record_comes(broker, group, join):
    topic = f"orders-{secrets.token_hex(6)}"
    broker.make(topic, 2)
    for number in (0, 1):
        send(broker, topic, number, *OLD)
    own = {"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "latest"}
    other = Consumer({**own, "partition.assignment.strategy": "cooperative-sticky"})
    other.subscribe([topic])
    try:
        until(lambda: [other.poll(0.05)] and len(other.assignment()) == 2, "both partitions")
        member = join(topic)
        polled(lambda: [other.poll(0.05)] and len(other.assignment()) == 1, "one of them", member)
        nothing_comes(member, 3.0)
    finally:
        other.close()
    polled(has_begun(broker, group, topic, 0, 1), "a beginning of each partition", member)
    send(broker, topic, 0, 1)
    send(broker, topic, 1, 2)
    assert sorted(bodies(receive(member, 2))) == [1, 2]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="at least once"),
        pytest.param({"semantics": "at_most_once"}, id="at most once"),
        pytest.param({"semantics": "exactly_once", "checker": AttemptChecker()}, id="exactly once"),
        pytest.param({"own": {"auto.offset.reset": "earliest"}}, id="earliest"),
    ],
)
def test_each_commit_of_the_group_says_that_it_has_begun(broker, topic, group, join, options):
    member = join(topic, commit_interval_s=0.1, **options)
    if "own" not in options:
        polled(has_begun(broker, group, topic, 0), "a beginning", member)
    send(broker, topic, 0, 1, 2)
    for delivery in receive(member, 2):
        member.settle(delivery, ACK)
    polled(lambda: (broker.committed(group, topic) or 0) >= 2, "a commit", member)
    assert broker.metadata(group, topic) == "idempotent"
    member.close()
    assert broker.metadata(group, topic) == "idempotent"


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
