"""Messages that are larger than somebody takes."""

import secrets
from dataclasses import replace

import pytest

from idempotent import Message
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.errors import AdapterError, PublishError
from idempotent.policy import Backoff
from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.member import GROUP, receive, working
from tests.support.logs import logged


def test_a_message_larger_than_a_fetch_still_comes(broker, topic, opened):
    broker.send(topic, b"x" * 500_000)
    broker.flush()
    small = dict.fromkeys(("message.max.bytes", "fetch.max.bytes", "max.partition.fetch.bytes"), 1000)
    adapter = opened(topic, consumer_config=small)
    assert len(receive(adapter)[0].message.body) == 500_000


def test_a_message_that_the_topic_does_not_take_is_an_error_and_the_next_one_goes_through(broker, opened):
    topic = f"orders-{secrets.token_hex(6)}"
    broker.make(topic, **{"max.message.bytes": "10000"})
    adapter = opened(topic)
    with pytest.raises(AdapterError, match="Message size too large"):
        adapter.publish(Message(topic, b"x" * 20_000, id="large"))
    adapter.publish(Message(topic, b"x", id="small"))
    assert receive(adapter)[0].message.id == "small"


def test_of_messages_published_together_those_too_large_are_named_and_each_other_arrives_once(broker):
    topic, at = f"orders-{secrets.token_hex(6)}", {0, 50, 51, 199}
    broker.make(topic, **{"max.message.bytes": "10000"})
    messages = [
        Message(topic, bytes(20_000 if number in at else 200), id=str(number)) for number in range(200)
    ]
    adapter = KafkaAdapter(broker.bootstrap)
    adapter.open([])
    with pytest.raises(PublishError, match=r"4 of 200 messages.*too large") as raised:
        adapter.publish_many(messages)
    adapter.close()
    assert (set(raised.value.refused), raised.value.unknown) == (at, {})
    # Which of them shared a batch with a refused one, and came later, is the client library's choice.
    arrived = sorted(int(message.id) for message in broker.read(topic))
    assert arrived == [number for number in range(200) if number not in at]


@pytest.mark.parametrize(
    "bad",
    [
        Message("orders\0", id="bad"),
        Message("no spaces in a topic", id="bad"),
        pytest.param(Message("no-such-topic", id="bad"), marks=pytest.mark.slow),
        Message("orders", id="\udc80"),
    ],
    ids=["NUL", "invalid name", "missing", "surrogate"],
)
def test_a_message_that_cannot_be_sent_is_named_and_takes_no_other_with_it(broker, topic, bad):
    bad = replace(bad, subject=topic) if bad.subject == "orders" else bad
    adapter = KafkaAdapter(broker.bootstrap)
    adapter.open([])
    with pytest.raises(PublishError) as raised:
        adapter.publish_many([Message(topic, id="0"), bad, Message(topic, id="1")])
    adapter.close()
    assert (set(raised.value.refused), raised.value.unknown) == ({1}, {})
    assert [message.id for message in broker.read(topic)] == ["0", "1"]


def test_a_dead_letter_that_is_too_large_waits_for_a_topic_that_takes_it(broker, opened, caplog, monkeypatch):
    monkeypatch.setattr(
        "idempotent.adapters.kafka.adapter._COPY_BACKOFF", Backoff(initial_s=0.2, maximum_s=1.0)
    )
    topic = f"orders-{secrets.token_hex(6)}"
    # As large as the original, so that our headers do not fit.
    broker.make(topic, **{"max.message.bytes": "20000"})
    broker.make(f"{topic}.dlq", **{"max.message.bytes": "20000"})
    broker.send(topic, b"x" * 19_900)
    broker.send(topic, b"small")
    broker.flush()
    done = []

    def handle(message):
        done.append(message.body)
        if message.body != b"small":
            raise ValueError("poison")

    adapter = KafkaAdapter(broker.bootstrap, ordering="none", commit_interval_s=0.1)
    with working(adapter, topic, handle, max_attempts=1):
        until(lambda: len(done) == 2, "both")
        until(
            lambda: [getattr(record, "error", "") for record in logged(caplog, "copy_failed")][1:],
            "several attempts",
        )
        assert broker.committed(GROUP, topic) is None
        broker.configure(f"{topic}.dlq", **{"max.message.bytes": "30000"})
        until(lambda: broker.read(f"{topic}.dlq"), "the dead letter")
        until(lambda: broker.committed(GROUP, topic) == 2, "its offset")
    assert any("too large" in getattr(record, "error", "") for record in caplog.records)
    (letter,) = broker.read(f"{topic}.dlq")
    assert letter.body == b"x" * 19_900
    assert len(done) == 2
