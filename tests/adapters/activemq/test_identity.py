"""Ids, bytes and names, exactly as they were sent."""

import logging
import subprocess
import sys

import pytest

from idempotent import Message, Outcome, Registry, Result
from idempotent.adapters import adapter_from_url
from idempotent.adapters.activemq import AckMode, StompAdapter
from idempotent.adapters.copies import ATTEMPT_HEADER, KEY_HEADER
from idempotent.checkers import MemoryChecker
from idempotent.errors import AdapterError
from idempotent.redrive import redrive
from tests.adapters.activemq.member import ACK, confirmed, ids, receive, send, until_left
from tests.adapters.activemq.stomp_client import client, in_queue

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
    confirmed(adapter)
    (again,) = receive(adapter, 1)
    assert again.message.id == id
    adapter.settle(again, Result(Outcome.DEAD))
    confirmed(adapter)
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
    assert first.id == first.position == first.raw.headers["message-id"]
    adapter.close()
    (again,) = receive(second := make(), 1)
    assert again.message.id == first.id
    second.settle(again, Result(Outcome.FAILED, retry_after_s=0.0))
    confirmed(second)
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
        # A handler that sent it on, with a body of bytes, would have a text made of these.
        assert "amq-msg-type" not in delivery.message.headers
        adapter.settle(delivery, Result(Outcome.DEAD))
        confirmed(adapter)
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
        confirmed(adapter)
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


def test_no_log_has_the_body_or_the_headers_of_a_message(make, name, caplog):
    caplog.set_level(logging.DEBUG)
    adapter = make()
    adapter.publish(Message(name, b"4111-1111", id="1", headers={"card": "5500-0000"}))
    (delivery,) = receive(adapter, 1)
    assert delivery.message.body == b"4111-1111"
    adapter.settle(delivery, ACK)
    adapter.close()
    assert "4111-1111" not in caplog.text
    assert "5500-0000" not in caplog.text


CHANGED = ["\N{PILE OF POO}", "\N{ROCKET}", "a\0b", "\ufffd\ufffd", "=&%+ \N{SNOWMAN}\N{ROCKET}"]


@pytest.mark.parametrize("by", ["publish", "client"])
def test_headers_that_activemq_changes_come_back_as_they_were(make, stomp_url, name, by):
    """A key that is made of a header names the same message after a delay, a death and a redrive."""
    adapter = make()
    if by == "publish":
        adapter.publish_many(
            [Message(name, id=str(n), headers={"who": who}) for n, who in enumerate(CHANGED)]
        )
    else:
        with client(stomp_url) as sender:
            for number, who in enumerate(CHANGED):
                sender.publish(f"/queue/{name}", b"", {KEY_HEADER: str(number), "who": who})

    def headers():
        found = receive(adapter, len(CHANGED))
        return found, {delivery.message.id: delivery.message.headers["who"] for delivery in found}

    first, before = headers()
    assert by == "client" or list(before.values()) == CHANGED
    for delivery in first:
        adapter.settle(delivery, Result(Outcome.FAILED, retry_after_s=0.01))
        confirmed(adapter)
    again, delayed = headers()
    assert delayed == before
    for delivery in again:
        adapter.settle(delivery, Result(Outcome.DEAD))
        confirmed(adapter)
    registry = Registry()
    consumer = registry.consumer(name, checker=MemoryChecker())(lambda _: None)
    assert redrive(consumer, adapter_from_url(stomp_url), idle_s=0.5).returned == len(CHANGED)
    assert headers()[1] == before


def test_a_header_that_a_stranger_has_changed_keeps_its_value(make, stomp_url, name):
    adapter = make()
    adapter.publish(Message(name, id="1", headers={"who": "\N{ROCKET}"}))
    (frame,) = in_queue(stomp_url, f"/queue/{name}")
    kept = {word: text for word, text in frame.headers.items() if word.startswith("x-idempotent-exact")}
    assert kept
    with client(stomp_url) as sender:
        sender.publish(f"/queue/{name}", b"", {**kept, "who": "somebody", KEY_HEADER: "2"})
    assert [delivery.message.headers["who"] for delivery in receive(adapter, 2)] == ["\N{ROCKET}", "somebody"]


def test_headers_of_any_length_that_activemq_reads_are_kept_exactly_in_copies(make, name):
    """Else two copies read alike, and the key of one is taken for that of the other."""
    adapter, sent = make(), {}
    for face in "\N{ROCKET}\N{PILE OF POO}":
        sent[face] = {
            "who": face,
            "note": face * 2500,
            "more": "\N{PILE OF POO}&=\0" * 1000,
            "plain": "x" * 10_000,
        }
        adapter.publish(Message(name, id=face, headers=sent[face]))
    for action in (Result(Outcome.FAILED, retry_after_s=0.01), Result(Outcome.PROCESSED)):
        deliveries = receive(adapter, 2)
        assert {each.message.id: each.message.headers for each in deliveries} == sent
        for each in deliveries:
            adapter.settle(each, action)
            confirmed(adapter)


def test_more_headers_than_activemq_reads_are_refused(make, name):
    adapter = make()
    with pytest.raises(AdapterError, match=r"up to 1,000 headers.*in the body"):
        adapter.publish(Message(name, id="1", headers={f"h{number}": "" for number in range(1000)}))
    adapter.publish(Message(name, id="2", headers={f"h{number}": "" for number in range(950)}))
    assert len(receive(adapter, 1)[0].message.headers) == 950
