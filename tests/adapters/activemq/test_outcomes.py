"""What becomes of a message, and of its copies."""

import secrets
import threading
import time

import pytest

from idempotent import Message, Outcome, Registry, Result, Worker
from idempotent.adapters.activemq import StompAdapter
from idempotent.adapters.copies import ATTEMPT_HEADER, ORIGIN_HEADER, OUTCOME_HEADER, REASON_HEADER
from idempotent.checkers import MemoryChecker
from idempotent.errors import StoreUnavailableError
from idempotent.policy import Backoff
from tests.adapters.activemq.member import (
    ACK,
    DEADLINE_S,
    QUICK,
    commands,
    confirmed,
    frames_sent_by,
    ids,
    left,
    receive,
    send,
    until_left,
    work_until,
)
from tests.adapters.activemq.stomp_client import in_queue, until_in_queue
from tests.support.hooks import answering


@pytest.mark.parametrize("outcome", [Outcome.PROCESSED, Outcome.DUPLICATE, Outcome.IGNORED])
def test_what_is_done_is_acknowledged(make, stomp_url, name, outcome):
    adapter = make()
    send(stomp_url, name, "a")
    adapter.settle(receive(adapter, 1)[0], Result(outcome))
    confirmed(adapter)
    until_left(stomp_url, name)


def test_what_failed_is_kept_back_by_the_scheduler_as_a_copy_with_its_identity(make, stomp_url, name):
    adapter = make()
    send(stomp_url, name, "a", priority="7", colour="red:\\ \nblue")
    (delivery,) = receive(adapter, 1)
    adapter.settle(delivery, Result(Outcome.FAILED, error=ValueError("no"), retry_after_s=1.0))
    confirmed(adapter)
    until_left(stomp_url, name)
    adapter.close()  # so it is not this process that keeps it
    (copy,) = until_in_queue(stomp_url, f"/queue/{name}")
    assert (copy.id, copy.headers[ATTEMPT_HEADER], copy.headers[ORIGIN_HEADER]) == (
        "a",
        "1",
        f"/queue/{name}",
    )
    assert copy.headers["priority"] == "7"
    assert copy.headers["colour"] == "red:\\ \nblue"
    assert copy.headers["message-id"] != delivery.message.position
    (again,) = receive(make(), 1)
    assert again.message.id == "a"


@pytest.mark.parametrize("outcome", [Outcome.DEAD, Outcome.REJECTED])
def test_what_is_dead_is_a_persistent_copy_with_the_reason(make, stomp_url, name, outcome):
    adapter = make()
    send(stomp_url, name, "a")
    (delivery,) = receive(adapter, 1)
    adapter.settle(delivery, Result(outcome, error=ValueError("no such customer")))
    confirmed(adapter)
    (letter,) = in_queue(stomp_url, f"/queue/{name}.dead")
    assert letter.headers[REASON_HEADER] == "ValueError: no such customer"
    assert (letter.headers[OUTCOME_HEADER], letter.headers["persistent"]) == (outcome.value, "true")
    until_left(stomp_url, name)


def test_a_dead_letter_does_not_expire_with_its_message(make, stomp_url, name):
    adapter = make()
    send(stomp_url, name, "a", expires=str(round((time.time() + 600) * 1000)))
    (delivery,) = receive(adapter, 1)
    assert delivery.message.headers["expires"] != "0"
    adapter.settle(delivery, Result(Outcome.DEAD))
    confirmed(adapter)
    (letter,) = in_queue(stomp_url, f"/queue/{name}.dead")
    assert letter.headers["expires"] == "0"


def test_dead_letters_can_have_one_queue_for_all(make, stomp_url, name):
    adapter = make(dead_letter_destination=f"{name}-graves")
    send(stomp_url, name, "a")
    adapter.settle(receive(adapter, 1)[0], Result(Outcome.DEAD))
    confirmed(adapter)
    until_left(stomp_url, f"{name}-graves", "a")


@pytest.mark.parametrize("outcome", [Outcome.IN_PROGRESS, Outcome.UNAVAILABLE])
def test_what_is_contended_is_held_unacknowledged_until_the_store_has_spoken(
    stomp_url, name, outcome, monkeypatch
):
    answers = [Result(outcome, retry_after_s=0.2), Result(outcome, retry_after_s=0.2)]
    registry = Registry()
    done = threading.Event()
    consumer = registry.consumer(name, checker=MemoryChecker())(lambda message: done.set())
    process = consumer.process
    seen = []

    def contended(message):
        seen.append(left(stomp_url, name))
        return answers.pop() if answers else process(message)

    monkeypatch.setattr(type(consumer), "process", lambda self, message: contended(message))
    send(stomp_url, name, "a")
    summary = work_until(registry, stomp_url, done.is_set)
    assert seen == [["a"]] * 3
    assert (summary[Outcome.PROCESSED], summary.requeued) == (1, 0)
    until_left(stomp_url, name)


def test_a_commit_that_fails_leaves_the_message_with_the_broker(stomp_url, name):
    checker = MemoryChecker()
    registry = Registry()
    effects, failures = [], [StoreUnavailableError("gone"), StoreUnavailableError("gone")]
    registry.consumer(name, checker=checker)(lambda message: effects.append(message.id))
    left_then = []

    def failing(*args, **kwargs):
        if failures:
            left_then.append(left(stomp_url, name))
            raise failures.pop()
        return checker._complete(*args, **kwargs)

    send(stomp_url, name, "a")
    adapter = StompAdapter(stomp_url, backoff=QUICK)
    worker = Worker(registry, adapter, drain_timeout_s=1.0, gc_interval_s=None)
    thread = threading.Thread(target=worker.run)
    with answering(checker, _complete=failing):
        thread.start()
        deadline = time.monotonic() + DEADLINE_S
        while not left_then and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        worker.stop()
        thread.join(DEADLINE_S)
    assert left_then[0] == ["a"]
    assert effects == ["a"]
    until_left(stomp_url, name, "a")


def test_a_poisonous_message_is_dead_after_its_attempts_over_several_workers(stomp_url, name):
    checker, attempts = MemoryChecker(), []

    def registry():
        made = Registry()

        @made.consumer(name, checker=checker, max_attempts=3, backoff=Backoff(initial_s=0.1, maximum_s=0.1))
        def handle(message):
            attempts.append(message.raw.headers.get(ATTEMPT_HEADER))
            raise ValueError("poison")

        return made

    send(stomp_url, name, "a")
    for count in (1, 2, 3):
        work_until(registry(), stomp_url, lambda count=count: len(attempts) >= count)
    assert attempts[:3] == [None, "1", "2"]
    (letter,) = until_in_queue(stomp_url, f"/queue/{name}.dead")
    assert letter.headers[REASON_HEADER] == "ValueError: poison"
    until_left(stomp_url, name)


def test_after_an_orderly_stop_nothing_that_was_done_comes_again(stomp_url, name):
    registry, effects = Registry(), []
    registry.consumer(name, checker=MemoryChecker())(lambda message: effects.append(message.id))
    send(stomp_url, name, *map(str, range(50)))
    first = work_until(registry, stomp_url, lambda: len(effects) >= 20, ack="dups_ok")
    assert set(left(stomp_url, name)) == set(map(str, range(50))) - set(effects)
    second = work_until(registry, stomp_url, lambda: len(effects) >= 50, ack="dups_ok")
    assert sorted(effects, key=int) == list(map(str, range(50)))
    assert first[Outcome.DUPLICATE] + second[Outcome.DUPLICATE] == 0


# So long that a busy machine sends the heartbeats in time.
HEARTBEAT_S = 1.5


@pytest.mark.slow
def test_a_handler_of_three_heartbeats_neither_loses_the_connection_nor_runs_twice(stomp_url, name):
    registry, effects = Registry(), []

    @registry.consumer(name, checker=MemoryChecker())
    def handle(message):
        time.sleep(6 * HEARTBEAT_S)  # the broker, which checks seldom, takes five to miss a client
        effects.append(message.id)

    send(stomp_url, name, "a")
    summary = work_until(registry, stomp_url, lambda: effects, heartbeat_s=HEARTBEAT_S)
    assert (effects, summary.stale) == (["a"], 0)
    until_left(stomp_url, name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"ack": "auto", "optimize_acknowledge": True}, {"ack": "transacted"}],
    ids=lambda o: o.get("ack", "-"),
)
def test_two_thousand_messages_in_any_order_with_lost_connections_have_one_effect_each(
    stomp_url, name, options
):
    registry, effects, random = Registry(), [], secrets.SystemRandom()

    @registry.consumer(name, checker=MemoryChecker())
    def handle(message):
        time.sleep(random.choice([0, 0, 0.002]))
        effects.append(message.id)

    send(stomp_url, name, *map(str, range(2000)))
    adapter = StompAdapter(stomp_url, backoff=QUICK, prefetch=200, **options)
    worker = Worker(registry, adapter, concurrency=4, batch_size=5, gc_interval_s=None)
    thread = threading.Thread(target=worker.run)
    thread.start()
    deadline = time.monotonic() + 60
    try:
        while len(effects) < 2000:
            assert time.monotonic() < deadline
            time.sleep(random.uniform(0.1, 0.4))
            if adapter._epoch is not None:
                adapter._epoch.connection._transport.disconnect_socket()
        while left(stomp_url, name):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        worker.stop()
        thread.join(DEADLINE_S)
    assert sorted(effects, key=int) == list(map(str, range(2000)))


def test_what_was_only_prefetched_is_marked_as_redelivered_and_still_runs(stomp_url, name, make):
    first = make()
    send(stomp_url, name, "a", "b")
    receive(first, 1)
    first.close()
    registry, seen = Registry(), []
    registry.consumer(name, checker=MemoryChecker())(lambda m: seen.append((m.id, m.redelivered)))
    work_until(registry, stomp_url, lambda: len(seen) == 2)
    assert sorted(seen) == [("a", True), ("b", True)]


def test_no_nack_is_sent_for_a_message_that_can_be_read(make, stomp_url, name, monkeypatch):
    adapter = make()
    send(stomp_url, name, *"abcd")
    deliveries = receive(adapter, 4)
    sent = frames_sent_by(adapter, monkeypatch)
    adapter.settle(deliveries[0], Result(Outcome.DEAD))
    confirmed(adapter)
    adapter.settle(deliveries[1], Result(Outcome.FAILED, retry_after_s=60.0))
    confirmed(adapter)
    adapter.requeue(deliveries[2])
    confirmed(adapter)
    adapter.settle(deliveries[3], ACK)
    assert commands(sent) == ["ACK"] * 4
    assert all(frame.headers["persistent"] == "true" for frame in sent if frame.cmd == "SEND")
    assert all("receipt" in frame.headers for frame in sent if frame.cmd == "SEND")


def test_a_message_stays_in_its_group_with_its_copies_too(make, name):
    adapter = make()
    for number in range(4):
        adapter.publish(Message(name, id=str(number), headers={"JMSXGroupID": "g-1"}))
    deliveries = receive(adapter, 4)
    other = make()
    adapter.settle(deliveries[0], Result(Outcome.FAILED, retry_after_s=0.2))
    confirmed(adapter)
    adapter.requeue(deliveries[1])
    confirmed(adapter)
    assert sorted(ids(receive(adapter, 2))) == ["0", "1"]
    assert other.receive(1, 0.3) == []
