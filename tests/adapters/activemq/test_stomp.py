"""StompAdapter on a real ActiveMQ: acknowledgement modes, the table of outcomes, topics, bytes and names."""

import secrets
import subprocess
import sys
import threading
import time

import pytest

from idempotent import Message, Outcome, Registry, Result, Worker
from idempotent.adapters import adapter_from_url
from idempotent.adapters.copies import (
    ATTEMPT_HEADER,
    KEY_HEADER,
    ORIGIN_HEADER,
    OUTCOME_HEADER,
    REASON_HEADER,
)
from idempotent.adapters.stomp import AckMode, StompAdapter
from idempotent.checkers import MemoryChecker
from idempotent.errors import AdapterError, ConfigurationError, StoreUnavailableError
from idempotent.policy import Backoff
from tests.adapters.activemq.stomp_client import client, in_queue, until_in_queue
from tests.working import run_until

ACK = Result(Outcome.PROCESSED)
DEADLINE_S = 90.0
QUICK = Backoff(initial_s=0.05, maximum_s=0.5)


@pytest.fixture
def name():
    return f"orders-{secrets.token_hex(6)}"


@pytest.fixture
def make(stomp_url, name):
    """`make(subject=..., **options)`: an open adapter, closed after the test."""
    opened = []

    def make_adapter(subject=None, **options):
        adapter = StompAdapter(stomp_url, backoff=QUICK, **options)
        opened.append(adapter)
        adapter.open([Registry().consumer(subject or name, checker=MemoryChecker())(lambda message: None)])
        return adapter

    yield make_adapter
    for adapter in opened:
        adapter.close()


def send(url, name, *keys, body=b"", **headers):
    with client(url) as sender:
        for key in keys:
            sender.publish(f"/queue/{name}", body, {KEY_HEADER: key, **headers})


def receive(adapter, count):
    found, deadline = [], time.monotonic() + DEADLINE_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count}"
        found += adapter.receive(count - len(found), 0.1)
    return found


def ids(deliveries):
    return [delivery.message.id for delivery in deliveries]


def left(url, name):
    return [message.id for message in in_queue(url, f"/queue/{name}")]


def until_left(url, name, *expected):
    found = until_in_queue(url, f"/queue/{name}", len(expected))
    assert [message.id for message in found] == list(expected)


def frames_sent_by(adapter, monkeypatch):
    """Everything the adapter writes from now on."""
    transport = adapter._epoch.connection._transport
    sent, transmit = [], transport.transmit
    monkeypatch.setattr(transport, "transmit", lambda frame: (sent.append(frame), transmit(frame))[1])
    return sent


def commands(sent):
    return [frame.cmd for frame in sent if frame.cmd]


# Modes


@pytest.mark.parametrize("ack", ["individual", "auto"])
def test_each_message_is_acknowledged_when_it_is_settled(make, stomp_url, name, ack):
    adapter = make(ack=ack)
    send(stomp_url, name, "a", "b", "c")
    deliveries = receive(adapter, 3)
    adapter.settle(deliveries[2], ACK)
    adapter.settle(deliveries[1], ACK)
    until_left(stomp_url, name, "a")


@pytest.mark.parametrize("ack", ["client", "dups_ok", "transacted"])
def test_a_cumulative_acknowledgement_never_covers_what_still_runs(make, stomp_url, name, ack):
    adapter = make(ack=ack, prefetch=3)
    send(stomp_url, name, "a", "b", "c")
    deliveries = receive(adapter, 3)
    adapter.settle(deliveries[1], ACK)
    adapter.settle(deliveries[2], ACK)
    for _ in range(10):
        adapter.receive(1, 0.1)
    assert left(stomp_url, name) == ["a", "b", "c"]
    adapter.settle(deliveries[0], ACK)
    adapter.receive(1, 0.5)
    until_left(stomp_url, name)


@pytest.mark.parametrize(
    ("ack", "options"),
    [("auto", {"optimize_acknowledge": True}), ("dups_ok", {})],
    ids=["optimized", "dups_ok"],
)
def test_groups_are_acknowledged_at_65_percent_of_the_prefetch(
    make, stomp_url, name, monkeypatch, ack, options
):
    adapter = make(ack=ack, prefetch=10, optimize_ack_timeout_s=1000.0, **options)
    send(stomp_url, name, *"abcdefghij")
    deliveries = receive(adapter, 10)
    sent = frames_sent_by(adapter, monkeypatch)
    for delivery in deliveries[:6]:
        adapter.settle(delivery, ACK)
    adapter.receive(1, 0.3)
    assert commands(sent) == []
    adapter.settle(deliveries[6], ACK)
    assert commands(sent) == ["ACK"]
    until_left(stomp_url, name, "h", "i", "j")


def test_dups_ok_acknowledges_a_topic_at_half_of_the_prefetch(make, stomp_url, name, monkeypatch):
    adapter = make(f"/topic/{name}", ack="dups_ok", prefetch=10, optimize_ack_timeout_s=1000.0)
    adapter.publish(Message(f"/topic/{name}", id="0"))
    deliveries = receive(adapter, 1)
    for number in range(1, 6):
        adapter.publish(Message(f"/topic/{name}", id=str(number)))
    deliveries += receive(adapter, 5)
    sent = frames_sent_by(adapter, monkeypatch)
    for delivery in deliveries[:5]:
        assert commands(sent) == []
        adapter.settle(delivery, ACK)
    assert commands(sent) == ["ACK"]


def test_a_group_that_is_not_full_is_acknowledged_after_a_while(make, stomp_url, name):
    adapter = make(ack="auto", optimize_acknowledge=True, optimize_ack_timeout_s=0.5)
    send(stomp_url, name, "a", "b")
    for delivery in receive(adapter, 2):
        adapter.settle(delivery, ACK)
    assert left(stomp_url, name) == ["a", "b"]
    adapter.receive(1, 0.8)
    until_left(stomp_url, name)


def test_transacted_acknowledgements_and_copies_take_effect_in_one_commit(make, stomp_url, name, monkeypatch):
    adapter = make(ack="transacted")
    send(stomp_url, name, "a", "b", "c")
    first, second, third = receive(adapter, 3)
    sent = frames_sent_by(adapter, monkeypatch)
    adapter.settle(second, Result(Outcome.DEAD, error=ValueError("no")))
    adapter.settle(third, ACK)
    assert commands(sent) == []
    adapter.settle(first, ACK)
    adapter.receive(1, 0.1)
    assert commands(sent) == ["BEGIN", "SEND", "ACK", "COMMIT"]
    until_left(stomp_url, name)
    until_left(stomp_url, f"{name}.dead", "b")


def test_with_receipts_an_acknowledgement_is_done_when_settle_returns(make, stomp_url, name):
    adapter = make(receipts=True)
    send(stomp_url, name, "a")
    (delivery,) = receive(adapter, 1)
    adapter.settle(delivery, ACK)
    assert left(stomp_url, name) == []


def test_the_broker_sends_no_more_ahead_than_the_prefetch(make, stomp_url, name):
    first = make(prefetch=2)
    send(stomp_url, name, *"abcde")
    mine = receive(first, 2)
    second = make(prefetch=10)
    assert ids(mine + receive(second, 3)) == list("abcde")
    assert first.receive(1, 0.2) == []


# What becomes of each outcome


@pytest.mark.parametrize("outcome", [Outcome.PROCESSED, Outcome.DUPLICATE, Outcome.IGNORED])
def test_what_is_done_is_acknowledged(make, stomp_url, name, outcome):
    adapter = make()
    send(stomp_url, name, "a")
    adapter.settle(receive(adapter, 1)[0], Result(outcome))
    until_left(stomp_url, name)


def test_what_failed_is_kept_back_by_the_scheduler_as_a_copy_with_its_identity(make, stomp_url, name):
    adapter = make()
    send(stomp_url, name, "a", priority="7", colour="red:\\ \nblue")
    (delivery,) = receive(adapter, 1)
    adapter.settle(delivery, Result(Outcome.FAILED, error=ValueError("no"), retry_after_s=1.0))
    assert left(stomp_url, name) == []
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
    (letter,) = in_queue(stomp_url, f"/queue/{name}.dead")
    assert letter.headers["expires"] == "0"


def test_dead_letters_can_have_one_queue_for_all(make, stomp_url, name):
    adapter = make(dead_letter_destination=f"{name}-graves")
    send(stomp_url, name, "a")
    adapter.settle(receive(adapter, 1)[0], Result(Outcome.DEAD))
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


def work_until(registry, url, is_done, **options):
    return run_until(registry, StompAdapter(url, backoff=QUICK, **options), is_done, concurrency=3)


def test_a_commit_that_fails_leaves_the_message_with_the_broker(stomp_url, name, monkeypatch):
    checker = MemoryChecker()
    registry = Registry()
    effects, failures = [], [StoreUnavailableError("gone"), StoreUnavailableError("gone")]
    registry.consumer(name, checker=checker)(lambda message: effects.append(message.id))
    complete, left_then = checker._complete, []

    def failing(*args, **kwargs):
        if failures:
            left_then.append(left(stomp_url, name))
            raise failures.pop()
        return complete(*args, **kwargs)

    monkeypatch.setattr(checker, "_complete", failing)
    send(stomp_url, name, "a")
    adapter = StompAdapter(stomp_url, backoff=QUICK)
    worker = Worker(registry, adapter, drain_timeout_s=1.0, gc_interval_s=None)
    thread = threading.Thread(target=worker.run)
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
            attempts.append(message.headers.get(ATTEMPT_HEADER))
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


# A busy machine must be able to keep it up.
HEARTBEAT_S = 2.0


def test_a_handler_of_three_heartbeats_neither_loses_the_connection_nor_runs_twice(stomp_url, name):
    registry, effects = Registry(), []

    @registry.consumer(name, checker=MemoryChecker())
    def handle(message):
        time.sleep(3.5 * HEARTBEAT_S)
        effects.append(message.id)

    send(stomp_url, name, "a")
    summary = work_until(registry, stomp_url, lambda: effects, heartbeat_s=HEARTBEAT_S)
    assert (effects, summary.stale) == (["a"], 0)
    until_left(stomp_url, name)


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


def test_nack_is_never_sent(make, stomp_url, name, monkeypatch):
    adapter = make()
    send(stomp_url, name, *"abcd")
    deliveries = receive(adapter, 4)
    sent = frames_sent_by(adapter, monkeypatch)
    adapter.settle(deliveries[0], Result(Outcome.DEAD))
    adapter.settle(deliveries[1], Result(Outcome.FAILED, retry_after_s=60.0))
    adapter.requeue(deliveries[2])
    adapter.settle(deliveries[3], ACK)
    assert commands(sent) == ["SEND", "ACK"] * 3 + ["ACK"]
    assert all(frame.headers["persistent"] == "true" for frame in sent if frame.cmd == "SEND")
    assert all("receipt" in frame.headers for frame in sent if frame.cmd == "SEND")


def test_a_message_stays_in_its_group_with_its_copies_too(make, name):
    adapter = make()
    for number in range(4):
        adapter.publish(Message(name, id=str(number), headers={"JMSXGroupID": "g-1"}))
    deliveries = receive(adapter, 4)
    other = make()
    adapter.settle(deliveries[0], Result(Outcome.FAILED, retry_after_s=0.2))
    adapter.requeue(deliveries[1])
    assert sorted(ids(receive(adapter, 2))) == ["0", "1"]
    assert other.receive(1, 0.3) == []


# Topics


def test_a_durable_subscription_keeps_messages_while_nobody_is_here_and_every_group_gets_its_own(make, name):
    topic = f"/topic/{name}"
    billing = {"client_id": f"{name}-billing", "durable_subscription": "billing"}
    mailing = {"client_id": f"{name}-mailing", "durable_subscription": "mailing"}
    for options in (billing, mailing):
        adapter = make(topic, **options)
        adapter.publish(Message("/queue/elsewhere"))  # when it returns, the subscription stands
        adapter.close()
    make().publish(Message(topic, b"paid", id="a"))
    for options in (billing, mailing):
        (delivery,) = receive(adapter := make(topic, **options), 1)
        assert (delivery.message.subject, delivery.message.id) == (topic, "a")
        adapter.settle(delivery, ACK)
        adapter.close()
        again = make(topic, **options)
        assert again.receive(1, 0.5) == []
        again.close()


def test_a_message_has_its_effect_once_in_each_group_although_they_share_a_store(make, stomp_url, name):
    topic, checker, effects = f"/topic/{name}", MemoryChecker(), []
    workers = []
    for group in ("billing", "mail"):
        registry = Registry()
        registry.consumer(topic, group=group, checker=checker)(lambda _, to=group: effects.append(to))
        workers.append(Worker(registry, StompAdapter(stomp_url, backoff=QUICK), gc_interval_s=None))
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    sender, deadline = make("elsewhere"), time.monotonic() + DEADLINE_S
    while len(effects) < 2:  # a topic forgets what nobody subscribes to yet
        assert time.monotonic() < deadline
        sender.publish(Message(topic, id="a"))
        time.sleep(0.1)
    for worker, thread in zip(workers, threads, strict=True):
        worker.stop()
        thread.join(DEADLINE_S)
    assert sorted(effects) == ["billing", "mail"]


def test_dead_letters_of_a_topic_go_to_a_queue(make, stomp_url, name):
    adapter = make(f"/topic/{name}")
    adapter.publish(Message(f"/topic/{name}", id="a"))
    adapter.settle(receive(adapter, 1)[0], Result(Outcome.DEAD))
    until_left(stomp_url, f"{name}.dead", "a")


def test_a_durable_subscription_is_for_one_topic_and_a_named_client(make, name):
    with pytest.raises(ConfigurationError, match="for the consumer of one topic"):
        make(client_id="c", durable_subscription="s")
    with pytest.raises(ConfigurationError, match="needs client_id"):
        make(f"/topic/{name}", durable_subscription="s")


# Identity, bytes and names

IDS = [
    "a:b",
    "a\\cb",
    "line\nline",
    "\r",
    " blanks ",
    "\N{SNOWMAN}",
    "\N{PILE OF POO}",
    "x" * 2000,
    "\t",
    "0",
]


@pytest.mark.parametrize("id", IDS, ids=ascii)
def test_an_id_survives_publication_delay_and_death_exactly(make, stomp_url, name, id):
    adapter = make()
    adapter.publish(Message(name, id=id, headers={"a:b\\\n": "x"}))
    (delivery,) = receive(adapter, 1)
    assert delivery.message.id == id
    assert delivery.message.headers["a:b\\\n"] == "x"
    adapter.settle(delivery, Result(Outcome.FAILED, retry_after_s=0.01))
    (again,) = receive(adapter, 1)
    assert again.message.id == id
    adapter.settle(again, Result(Outcome.DEAD))
    (letter,) = in_queue(stomp_url, f"/queue/{name}.dead")
    assert letter.id == id


def test_an_id_of_others_that_activemq_changes_gives_way_to_the_id_of_the_broker(make, stomp_url, name):
    """Otherwise it would be one id before, and another one after, the broker has stored it."""
    send(stomp_url, name, "\N{PILE OF POO}", "\N{ROCKET}", "\ufffd\ufffd", "a\0b")
    messages = [delivery.message for delivery in receive(make(), 4)]
    assert [message.id for message in messages] == [message.position for message in messages]
    assert len({message.id for message in messages}) == 4


@pytest.mark.parametrize("id", ["\ud800", b"\xff"], ids=ascii)
def test_an_id_that_stomp_cannot_carry_is_refused(make, name, id):
    with pytest.raises(AdapterError, match="STOMP cannot carry"):
        make().publish(Message(name, id=id))


def test_a_message_without_a_key_of_its_own_has_the_id_that_the_broker_gave_it(make, stomp_url, name):
    with client(stomp_url) as sender:
        sender.publish(f"/queue/{name}", b"x")
    adapter = make()
    (delivery,) = receive(adapter, 1)
    first = delivery.message
    assert first.id == first.position == first.headers["message-id"]
    adapter.close()
    (again,) = receive(second := make(), 1)
    assert again.message.id == first.id
    second.settle(again, Result(Outcome.FAILED, retry_after_s=0.0))
    (copy,) = receive(second, 1)
    assert (copy.message.id, copy.message.position == first.id) == (first.id, False)


def test_bodies_are_bytes_and_a_text_message_stays_one(make, stomp_url, name):
    every_byte = bytes(range(256)) * 40
    send(stomp_url, name, "bytes", body=every_byte)
    send(
        stomp_url,
        name,
        "text",
        body="h\N{LATIN SMALL LETTER O WITH DIAERESIS}".encode(),
        **{"amq-msg-type": "text"},
    )
    send(stomp_url, name, "empty")
    adapter = make()
    deliveries = receive(adapter, 3)
    assert [d.message.body for d in deliveries] == [every_byte, "h\xf6".encode(), b""]
    for delivery in deliveries:
        adapter.settle(delivery, Result(Outcome.DEAD))
    letters = in_queue(stomp_url, f"/queue/{name}.dead")
    assert [letter.body for letter in letters] == [every_byte, "h\xf6".encode(), b""]
    assert "amq-msg-type" in letters[1].headers


@pytest.mark.parametrize("body", [b"", b"x", b"\0\n\n\0", bytes(1000)], ids=["empty", "x", "nul", "long"])
def test_a_nul_in_a_header_tears_no_message_apart(make, stomp_url, name, body):
    adapter = make()
    with client(stomp_url) as sender:
        for number in range(8):  # the broker's order of headers depends on their names
            headers = {f"{number}-{letter}": "a\0" for letter in "abc"}
            sender.publish(
                f"/queue/{name}", body, {KEY_HEADER: str(number), **headers, f"{number}-z": "\0\0b"}
            )
    deliveries = receive(adapter, 8)
    assert ids(deliveries) == list("01234567")
    assert {delivery.message.body for delivery in deliveries} == {body}
    assert deliveries[3].message.headers["3-z"] == "\0\0b"
    for delivery in deliveries:
        adapter.settle(delivery, Result(Outcome.DEAD))
    until_left(stomp_url, name)


def test_odd_frames_do_not_end_the_connection(make, stomp_url, name):
    adapter = make()
    send(stomp_url, name, "odd", **{ATTEMPT_HEADER: "many", "AMQ_SCHEDULED_DELAY": "0", "expires": "0"})
    (delivery,) = receive(adapter, 1)
    epoch = adapter._epoch
    epoch.connection.send(type(delivery.message.raw)("ACK", {"id": "nonsense"}))
    adapter.receive(1, 0.3)
    assert adapter._epoch is epoch
    adapter.settle(delivery, ACK)
    until_left(stomp_url, name)


def test_subjects_name_queues_unless_they_say_otherwise(make, stomp_url, name):
    adapter = make(f"/queue/{name}")
    send(stomp_url, name, "a")
    (delivery,) = receive(adapter, 1)
    assert delivery.message.subject == f"/queue/{name}"
    adapter.settle(delivery, ACK)


def test_a_url_has_options(stomp_url):
    adapter = adapter_from_url(f"{stomp_url}?ack=dups_ok&prefetch=7&heartbeat_s=2&receipts=yes&scheduler=no")
    assert isinstance(adapter, StompAdapter)
    settings = adapter._settings
    assert (settings.ack, settings.prefetch, settings.heartbeat_s) == (AckMode.DUPS_OK, 7, 2.0)
    assert settings.receipts
    assert adapter._scheduler is False


def test_without_stomp_py_the_error_says_what_to_install():
    program = """
import sys
sys.modules["stomp"] = None
from idempotent.adapters import adapter_from_url
from idempotent.errors import MissingExtraError
try:
    adapter_from_url("stomp://host")
except MissingExtraError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == 'stomp.py is not installed. Type: pip install "idempotent-consumer[stomp]"\n'
