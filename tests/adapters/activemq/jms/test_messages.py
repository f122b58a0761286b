"""Messages of Java clients: what a consumer here receives, and what a Java client reads of its copies."""

import os

import pytest

from idempotent import Message, Outcome, Registry, Result
from idempotent.adapters.activemq import StompAdapter
from idempotent.adapters.activemq.frames import from_java, to_java
from idempotent.adapters.copies import OUTCOME_HEADER, REASON_HEADER
from idempotent.checkers import MemoryChecker
from idempotent.errors import UndecodableMessageError
from idempotent.observe import Observer
from idempotent.redrive import Redriven, redrive
from tests.adapters.activemq.jms.client import JmsClient, missing
from tests.adapters.activemq.member import ACK, QUICK, confirmed, left, receive, send, until_left, work_until
from tests.adapters.activemq.opening import one_consumer, opened
from tests.adapters.activemq.stomp_client import in_queue, until_in_queue
from tests.support.services import PrivateActiveMq, is_required

BROKERS_OWN = "ActiveMQ.DLQ"
EMOJI = "\xf6\N{GRINNING FACE}\0end"
ESCAPED = "\\u00f6\\ud83d\\ude00\\u0000end"
UNREADABLE = ["map", "object", "stream"]
EMPTY = ["empty-text", "no-text", "plain"]


@pytest.fixture(scope="session")
def jms(pytestconfig, tmp_path_factory):
    """Sends and reads messages as a Java client does."""
    absent = missing()
    if absent is not None:
        required = is_required(os.environ, option=pytestconfig.getoption("require_services"))
        (pytest.fail if required else pytest.skip)(f"no JMS client: {absent}")
    return JmsClient(tmp_path_factory.mktemp("jms"))


@pytest.fixture
def server(spare):
    return spare(PrivateActiveMq)


class Recorder(Observer):
    def __init__(self):
        self.outcomes = {}

    def settled(self, message, result):
        self.outcomes[message.headers["kind"]] = result.outcome


def worked(server, subject, count, **options):
    """Work until `count` kinds of messages are settled: the bodies that were handled, and the outcomes."""
    recorder = Recorder()
    registry, handled = Registry([recorder]), {}

    @registry.consumer(subject, checker=MemoryChecker(), max_attempts=1)
    def handle(message):
        handled[message.headers["kind"]] = message.body
        if message.headers["kind"] == "poison":
            raise ValueError("poison")

    work_until(registry, server.url, lambda: len(recorder.outcomes) >= count, **options)
    return handled, recorder.outcomes


@pytest.mark.parametrize("ack", ["individual", "client", "dups_ok", "transacted"])
def test_a_body_that_stomp_does_not_carry_is_rejected_and_the_broker_keeps_the_message(
    jms, server, name, ack
):
    jms.send(server.jms_url, name, "map", "text", "object", "bytes", "stream")
    handled, outcomes = worked(server, name, 5, ack=ack)
    assert handled == {"text": EMOJI.encode(), "bytes": b"\0\xed\xa0\x80"}
    assert {kind for kind, outcome in outcomes.items() if outcome is Outcome.REJECTED} == set(UNREADABLE)
    until_left(server.url, name)
    letters = until_in_queue(server.url, f"/queue/{name}.dead", 3)
    assert [letter.headers["kind"] for letter in letters] == UNREADABLE
    for letter in letters:
        assert letter.headers[OUTCOME_HEADER] == "rejected"
        assert "moved the original to its own, ActiveMQ.DLQ" in letter.headers[REASON_HEADER]
    kept = jms.read(server.jms_url, BROKERS_OWN, 3, name)
    assert [(one["kind"], one["type"], one["body"]) for one in kept[::2]] == [
        ("map", "ActiveMQMapMessage", "value"),
        ("stream", "ActiveMQStreamMessage", "value"),
    ]
    assert kept[1]["type"] == "ActiveMQObjectMessage"


def test_an_empty_message_is_rejected_unless_the_adapter_is_told_to_accept_it(jms, server, name):
    jms.send(server.jms_url, name, *EMPTY, "empty-bytes")
    handled, outcomes = worked(server, name, 4)
    assert handled == {"empty-bytes": b""}
    assert [outcomes[kind] for kind in EMPTY] == [Outcome.REJECTED] * 3
    jms.send(server.jms_url, f"{name}.accepted", *EMPTY)
    handled, _ = worked(server, f"{name}.accepted", 3, accept_empty=True)
    assert handled == dict.fromkeys(EMPTY, b"")


def test_a_message_that_is_not_persistent_is_rejected_and_its_reason_says_that_it_is_gone(jms, server, name):
    jms.send(server.jms_url, name, "passing-map")
    worked(server, name, 1)
    (letter,) = until_in_queue(server.url, f"/queue/{name}.dead")
    assert "dropped the original: not persistent" in letter.headers[REASON_HEADER]


@pytest.mark.parametrize("durable", [False, True])
def test_a_body_that_stomp_does_not_carry_is_rejected_on_a_topic(jms, server, name, durable):
    options = {"client_id": name, "durable_subscription": name} if durable else {}
    with opened(server.url, f"/topic/{name}", **options) as adapter:
        adapter.publish(Message("elsewhere"))  # when it returns, the subscription stands
        jms.send(server.jms_url, f"topic:{name}", "map", "text")
        refused, text = receive(adapter, 2)
        assert isinstance(refused.error, UndecodableMessageError)
        adapter.settle(refused, Result(Outcome.REJECTED, error=refused.error))
        confirmed(adapter)
        adapter.settle(text, ACK)
        adapter.publish(Message("elsewhere"))
        assert adapter.stale_settlements == 0
    assert len(in_queue(server.url, f"/queue/{name}.dead")) == 1


@pytest.mark.parametrize("ack", ["client", "transacted"])
def test_what_is_unfinished_before_a_rejected_message_is_not_acknowledged_with_it(jms, server, name, ack):
    send(server.url, name, "first")
    jms.send(server.jms_url, name, "map")
    send(server.url, name, "last")
    with opened(server.url, name, ack=ack) as adapter:
        _, refused, last = receive(adapter, 3)
        adapter.settle(last, ACK)
        adapter.settle(refused, Result(Outcome.REJECTED, error=refused.error))
        confirmed(adapter)
    assert left(server.url, name) == ["first", "last"]
    with opened(server.url, name, ack=ack) as adapter:
        for delivery in receive(adapter, 2):
            adapter.settle(delivery, ACK)
    until_left(server.url, name)


def test_a_dead_letter_whose_body_stomp_does_not_carry_stays_as_it_is(jms, server, name):
    jms.send(server.jms_url, f"{name}.dead", "map")
    consumer = next(iter(one_consumer(name).consumers.values()))
    adapter = StompAdapter(server.url, backoff=QUICK)
    assert redrive(consumer, adapter, limit=1, idle_s=10) == Redriven(left=1, unreadable=1)
    assert in_queue(server.url, f"/queue/{name}") == []
    (kept,) = jms.read(server.jms_url, f"{name}.dead", 1, f"{name}.dead")
    assert (kept["type"], kept["body"]) == ("ActiveMQMapMessage", "value")


def test_a_text_of_java_is_utf_8_here_and_its_copies_are_texts_that_java_reads(jms, server, name):
    jms.send(server.jms_url, name, "poison", "half-pair")
    handled, _ = worked(server, name, 2)
    # UTF-8 has no half of a pair: that text comes as it was.
    assert handled == {"poison": EMOJI.encode(), "half-pair": b"a\xed\xa0\xbd"}
    (letter,) = jms.read(server.jms_url, f"{name}.dead", 1, name)
    assert (letter["type"], letter["body"]) == ("ActiveMQTextMessage", ESCAPED)
    assert (letter[OUTCOME_HEADER], letter[REASON_HEADER]) == ("dead", "ValueError: poison")


def test_a_published_text_is_one_for_java_and_for_a_consumer_here(jms, server, name):
    headers = {"amq-msg-type": "text", "sentTo": name}
    with opened(server.url, name) as adapter:
        adapter.publish(Message(name, EMOJI.encode(), headers=headers))
        (delivery,) = receive(adapter, 1)
        assert delivery.message.body == EMOJI.encode()
        adapter.publish(Message(f"{name}.java", EMOJI.encode(), headers=headers))
    (text,) = jms.read(server.jms_url, f"{name}.java", 1, name)
    assert (text["type"], text["body"]) == ("ActiveMQTextMessage", ESCAPED)


def test_a_copy_stays_in_its_group_if_the_producer_repeats_the_group_in_a_property(jms, server, name):
    jms.send(server.jms_url, name, "grouped-text", "text")
    with opened(server.url, name) as adapter:
        for delivery in receive(adapter, 2):
            adapter.settle(delivery, Result(Outcome.DEAD))
            confirmed(adapter)
    grouped, lost = jms.read(server.jms_url, f"{name}.dead", 2, name)
    assert (grouped["kind"], grouped["JMSXGroupID"]) == ("grouped-text", "g")
    assert "JMSXGroupID" not in lost


@pytest.mark.parametrize("text", [EMOJI, "", "\ud7ff\ue000", "\U00010000\U0010ffff", "\0"], ids=ascii)
def test_javas_encoding_goes_there_and_back(text):
    java = to_java(text.encode())
    assert from_java(java) == text.encode()
    assert b"\0" not in java
    assert from_java(text.encode()) == text.encode()


@pytest.mark.parametrize("body", [b"\xff\0", b"a\xed\xa0\x80b", b"\xed\xa0"], ids=ascii)
def test_bytes_that_are_no_text_stay_as_they_are(body):
    assert (to_java(body), from_java(body)) == (body, body)
