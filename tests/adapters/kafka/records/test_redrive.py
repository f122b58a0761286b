"""A dead letter that is sent back is the record that it was."""

import secrets
import threading
from collections import Counter
from contextlib import closing, contextmanager

import pytest

from idempotent import Message, Outcome, Registry, Result, Worker
from idempotent.adapters.copies import FOR_HEADER, KEY_HEADER, ONLY_HEADER, ORIGIN_HEADER
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.checkers import AttemptChecker, MemoryChecker, OffsetChecker
from idempotent.migrations import upgrade
from idempotent.redrive import Redriven, redrive
from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.member import GROUP, nothing, receive
from tests.adapters.kafka.through_proxy import garbled
from tests.support.logs import logged

DEAD = Result(Outcome.DEAD, error=ValueError("no"))
# Value and key: both, a tombstone, no key, both empty, neither.
RECORDS = [(b"\0\xff", b"customer"), (None, b"customer"), (b"1", None), (b"", b""), (None, None)]
HEADERS = [("colour", b"\xff\xfe"), ("twice", b"1"), ("twice", b"2"), ("none", None), ("empty", b"")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"ordering": "none", "retry_topic": True}], ids=["direct", "retried"]
)
def test_a_redriven_record_is_the_same_in_the_same_partition(broker, opened, options):
    topic = f"orders-{secrets.token_hex(6)}"
    broker.make(topic, 5)
    broker.make(f"{topic}.dlq", 2)
    broker.make(f"{topic}.{GROUP}.retry")
    for number, (value, key) in enumerate(RECORDS):
        broker.produce(topic, value, key, HEADERS, number)
    adapter = opened(topic, **options)
    for delivery in receive(adapter, 5):
        adapter.settle(delivery, Result(Outcome.FAILED, retry_after_s=0.0) if options else DEAD)
    if options:
        for delivery in receive(adapter, 5):
            adapter.settle(delivery, DEAD)
    adapter.close()  # waits for the dead letters
    consumer = Registry().consumer(topic, group=GROUP, checker=MemoryChecker())(nothing)
    reader = KafkaAdapter(broker.bootstrap, ordering="none")
    assert redrive(consumer, reader, limit=5, idle_s=60).returned == 5
    found = broker.read_raw(topic)
    assert sorted(raw.partition() for raw in found) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    ids = {}
    for raw in found:
        theirs = [pair for pair in raw.headers() if not pair[0].startswith("x-idempotent-")]
        assert (raw.value(), raw.key(), theirs) == (*RECORDS[raw.partition()], HEADERS)
        ours = dict(raw.headers()[len(HEADERS) :])
        if ours:  # it came back, as a copy that is to be read here
            assert {*ours} == {FOR_HEADER, KEY_HEADER, ONLY_HEADER, ORIGIN_HEADER, "x-idempotent-timestamp"}
            assert ours[ONLY_HEADER] == GROUP.encode()
            assert ours[FOR_HEADER] == topic.encode()
        ids.setdefault(raw.partition(), []).append(ours.get(KEY_HEADER))
    assert all(first is None and second is not None for first, second in ids.values())


@pytest.mark.parametrize("origin", ["", "{topic}", "{topic}/7/0", f"{{topic}}/{2**40}/0"])
def test_a_letter_whose_origin_names_no_partition_goes_where_its_key_says(broker, topic, opened, origin):
    letter = f"{topic}.dlq"
    broker.produce(letter, b"1", b"customer", [(ORIGIN_HEADER, origin.format(topic=topic).encode())])
    consumer = Registry().consumer(topic, group=GROUP, checker=MemoryChecker())(nothing)
    assert redrive(consumer, KafkaAdapter(broker.bootstrap), limit=1, idle_s=60).returned == 1
    (raw,) = broker.read_raw(topic)
    assert (raw.value(), raw.key()) == (b"1", b"customer")
    assert KEY_HEADER in dict(raw.headers())


@pytest.mark.parametrize("origin", ["elsewhere/3/0", "nonsense", "{topic}/-1/0", "{topic}/x/0"])
def test_a_letter_whose_origin_is_elsewhere_stays(broker, topic, origin):
    broker.produce(f"{topic}.dlq", b"1", None, [(ORIGIN_HEADER, origin.format(topic=topic).encode())])
    consumer = Registry().consumer(topic, group=GROUP, checker=MemoryChecker())(nothing)
    reader = KafkaAdapter(broker.bootstrap)
    assert redrive(consumer, reader, limit=1, idle_s=10) == Redriven(left=1, others=1)


def test_a_letter_whose_headers_cannot_be_decoded_stays_with_them(broker, topic, caplog):
    broker.produce(f"{topic}.dlq", b"1", b"customer", HEADERS)
    consumer = Registry().consumer(topic, group=GROUP, checker=MemoryChecker())(nothing)
    with garbled(broker) as bootstrap:
        left = redrive(consumer, KafkaAdapter(bootstrap), limit=1, idle_s=10)
    assert left == Redriven(left=1, unreadable=1)
    (told,) = logged(caplog, "letter_unreadable")
    assert "header" in told.error
    assert broker.read_raw(topic) == []
    assert redrive(consumer, KafkaAdapter(broker.bootstrap), limit=1, idle_s=60).returned == 1
    (raw,) = broker.read_raw(topic)
    assert raw.headers()[: len(HEADERS)] == HEADERS


def test_an_origin_that_a_producer_wrote_is_replaced(broker, topic, opened):
    broker.produce(topic, b"1", None, [(ORIGIN_HEADER, b"elsewhere/3/0")])
    adapter = opened(topic)
    (delivery,) = receive(adapter, 1)
    adapter.settle(delivery, DEAD)
    adapter.close()
    (raw,) = broker.read_raw(f"{topic}.dlq")
    assert [value for name, value in raw.headers() if name == ORIGIN_HEADER] == [f"{topic}/0/0".encode()]


@pytest.mark.parametrize("kind", ["offsets", "attempts"])
def test_a_group_that_knows_positions_gets_its_letters_back(broker, topic, kind, tmp_path):
    url = f"sqlite:///{tmp_path / 'offsets.db'}"
    upgrade(url)
    checker = OffsetChecker(url) if kind == "offsets" else AttemptChecker()
    options = {} if kind == "offsets" else {"semantics": "exactly_once"}
    runs, bad = Counter(), {b"1", b"3"}

    def handle(message: Message) -> None:
        runs[message.body] += 1
        if message.body in bad:
            raise ValueError("no such customer")

    registry = Registry()
    consumer = registry.consumer(topic, group=GROUP, checker=checker, max_attempts=1)(handle)
    with closing(checker):
        for number in range(4):
            broker.produce(topic, b"%d" % number, None, [])
        with working(registry, broker, options):
            until(lambda: runs.total() == 4 and len(broker.read_raw(f"{topic}.dlq")) == 2, "two letters")
        bad.clear()
        assert redrive(consumer, KafkaAdapter(broker.bootstrap), limit=2, idle_s=60) == Redriven(returned=2)
        with working(registry, broker, options):
            until(lambda: runs.total() == 6, "the letters' messages")
    assert runs == {b"0": 1, b"1": 2, b"2": 1, b"3": 2}


@contextmanager
def working(registry, broker, options):
    worker = Worker(registry, KafkaAdapter(broker.bootstrap, **options), gc_interval_s=None)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(150)
