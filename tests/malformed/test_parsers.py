"""The parsers and what reads headers, against bytes that anybody may have sent."""

from __future__ import annotations

import json
import random
from datetime import datetime
from types import SimpleNamespace

import pika
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idempotent import Message, Registry
from idempotent.adapters.activemq.frames import QUOTED_KEY_HEADER, Frame, message_of, send_frame
from idempotent.adapters.activemq.transport import FrameSplitter
from idempotent.adapters.copies import (
    ATTEMPT_HEADER,
    dead_letter_headers,
    delayed_headers,
    fit_headers,
    number_in,
    returned_headers,
    take_ours,
)
from idempotent.adapters.files.adapter import RecordFormat
from idempotent.adapters.files.lines import Line
from idempotent.adapters.kafka.records import DUE_HEADER, copied_headers, due_in_s
from idempotent.adapters.kafka.records import message_of as message_of_kafka
from idempotent.adapters.rabbitmq.messages import Received, message_from, properties_of_copy
from idempotent.checkers import MemoryChecker
from idempotent.errors import AdapterError, UndecodableRecordError
from idempotent.message import Position
from idempotent.outcomes import Outcome, Result

MANY = settings(max_examples=500, deadline=None)
MANGLED = 100_000
REFUSED = Result(Outcome.REJECTED, error=ValueError("no"))

text = st.text(max_size=20)
header_name = st.one_of(
    text,
    st.sampled_from(
        [
            "x-idempotent-key",
            ATTEMPT_HEADER,
            "x-idempotent-origin",
            "x-idempotent-cut",
            "x-idempotent-for",
            "x-idempotent-given",
            DUE_HEADER,
            QUOTED_KEY_HEADER,
        ]
    ),
)
number = st.one_of(
    st.integers(), st.just(10**400), st.just("1" * 5000), st.just("9" * 400), st.just(float("inf"))
)
simple = st.one_of(st.none(), st.booleans(), number, st.floats(), text, st.binary(max_size=20))
value = st.recursive(
    simple,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
    max_leaves=5,
)
# What AMQP has a type for.
amqp_simple = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    text,
    st.binary(max_size=20),
    st.datetimes(min_value=datetime(1970, 1, 2)),  # noqa: DTZ001 - as pika makes them
    st.decimals(-1000, 1000, places=2),
)
amqp_value = st.recursive(
    amqp_simple,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)


def copies_of(message: Message) -> list[dict]:
    """Headers as they go round: delayed, dead, cut to size, and brought back."""
    theirs = dict(message.headers)
    ours = take_ours(theirs, "here")
    dead = dead_letter_headers(message, ours, "here", "there", REFUSED)
    return [
        {**theirs, **delayed_headers(message, ours, "here", "there")},
        {**theirs, **dead},
        fit_headers({**theirs, **dead}, lambda headers: len(headers) < 3),
        {**theirs, **returned_headers(message, dead, "here")},
    ]


def has_a_verdict(message: Message) -> Outcome:
    consume = Registry().consumer(message.subject, group="g", checker=MemoryChecker())
    return consume(lambda _: None).process(message).outcome


@given(st.lists(st.binary(max_size=40), max_size=10))
@MANY
def test_no_bytes_stop_the_splitter(chunks):
    splitter = FrameSplitter()
    for chunk in chunks:
        splitter.add(chunk)
        for frame in splitter:
            assert isinstance(frame, bytes)


def test_a_hundred_thousand_mangled_frames_take_no_good_one_with_them():
    """A frame may hold any bytes but its end, and any length but a wrong one, which is for the next frame to suffer."""
    rng = random.Random(7)
    splitter, good, found = FrameSplitter(), 0, 0
    for number in range(MANGLED):
        junk = bytes(rng.choices(b"\nabc:\\\r \xff\xc3\x28content-length", k=rng.randrange(40)))
        frame = b"X" + junk.replace(b"content-length", b"") + b"\n\n\0"
        splitter.add(frame)
        if number % 10 == 0:
            body = rng.randbytes(rng.randrange(20))
            splitter.add(b"MESSAGE\nn:%d\ncontent-length:%d\n\n%b\0" % (number, len(body), body))
            good += 1
        found += sum(frame.startswith(b"MESSAGE\nn:") for frame in splitter)
    assert found == good


@pytest.mark.parametrize("length", [b"9" * 5000, b"-1", b"1_0", b" ", b"4x", b"0x4"])
def test_a_length_that_is_none_is_not_obeyed(length):
    splitter = FrameSplitter()
    splitter.add(b"MESSAGE\ncontent-length:%b\n\nbody\0RECEIPT\n\n\0" % length)
    assert [frame[:7] for frame in splitter] == [b"MESSAGE", b"RECEIPT"]


@given(st.dictionaries(header_name, text, max_size=5), st.binary(max_size=20))
@MANY
def test_any_stomp_headers_make_a_message_that_can_be_copied(headers, body):
    message = message_of(
        Frame("MESSAGE", {"message-id": "ID:1", **headers}, body), "q", "/queue/q", redelivered=False
    )
    assert message.id
    assert has_a_verdict(message) is Outcome.PROCESSED
    for copied in copies_of(message):
        try:
            frame = send_frame("/queue/q", body, copied)
        except AdapterError:
            continue  # an id that is no text
        assert all("\0" not in word for pair in frame.headers.items() for word in pair[1:])


def test_an_id_that_was_badly_quoted_is_not_taken_for_another():
    def id_of(quoted):
        return message_of(
            Frame("MESSAGE", {"message-id": f"ID:{quoted}", QUOTED_KEY_HEADER: quoted}),
            "q",
            "/queue/q",
            redelivered=False,
        ).id

    assert id_of("%FF") != id_of("%FE")
    assert id_of("%F0%9F%98%80") == "\N{GRINNING FACE}"


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(header_name, st.one_of(st.none(), st.binary(max_size=20), text.map(str.encode))), max_size=5
    ),
    st.one_of(st.none(), st.binary(max_size=20)),
)
@MANY
def test_any_kafka_record_makes_a_message_that_can_be_copied(pairs, body):
    raw = SimpleNamespace(
        headers=lambda: pairs, value=lambda: body, topic=lambda: "t", partition=lambda: 0, offset=lambda: 3,
        timestamp=lambda: (1, 5), key=lambda: None,
    )  # fmt: skip
    message = message_of_kafka(raw, "t", Position("id", 0, 3, 3), False)
    assert has_a_verdict(message) is Outcome.PROCESSED
    assert due_in_s(raw) >= 0.0
    for copied in copies_of(message):
        ours = {name: each for name, each in copied.items() if name.startswith("x-idempotent-")}
        for name, sent in copied_headers(raw, ours):
            assert isinstance(name, str)
            assert sent is None or isinstance(sent, bytes)


@pytest.mark.slow
@given(
    st.dictionaries(st.one_of(st.text(max_size=8), st.just("x-idempotent-key")), amqp_value, max_size=4),
    st.one_of(st.none(), text),
    st.binary(max_size=20),
)
@MANY
def test_any_amqp_headers_make_a_message_whose_copy_can_be_written(headers, message_id, body):
    received = Received(
        SimpleNamespace(redelivered=False, delivery_tag=1),
        pika.BasicProperties(headers=headers, message_id=message_id),
    )
    message = message_from("q", received, body)
    assert has_a_verdict(message) in {Outcome.PROCESSED, Outcome.REJECTED}
    for copied in copies_of(message):
        assert b"".join(properties_of_copy(message, copied).encode())


@given(st.one_of(st.binary(max_size=60), st.dictionaries(text, value, max_size=4).map(repr).map(str.encode)))
@MANY
def test_a_line_is_a_message_or_undecodable(line):
    for form in (RecordFormat("s"), RecordFormat("s", "id"), RecordFormat()):
        try:
            message = form.message(Line(1, line), ["s"])
        except UndecodableRecordError:
            continue
        assert has_a_verdict(message) in {Outcome.PROCESSED, Outcome.REJECTED}


@pytest.mark.slow
def test_a_hundred_thousand_mangled_lines():
    rng = random.Random(7)
    whole = json.dumps(
        {"id": "a-1", "subject": "s", "headers": {"h": [1, {"x": "\u20ac"}]}, "body": {"n": 1}}
    ).encode()
    good = 0
    for _ in range(MANGLED):
        line = bytearray(whole)
        for _ in range(rng.randrange(4)):
            line[rng.randrange(len(line))] = rng.randrange(256)
        try:
            message = RecordFormat("s").message(Line(1, bytes(line)), ["s"])
        except UndecodableRecordError:
            assert line != whole
        else:
            good += 1
            assert message.id is None or message.id.encode()
    assert good > MANGLED // 4


@given(value)
@MANY
def test_an_attempt_is_a_number_of_ours_or_none(anything):
    assert 0 <= number_in({"n": anything}, "n") < 2**63


def from_amqp(key):
    properties = pika.BasicProperties(headers={"x-idempotent-key": key}, message_id="the broker's")
    return message_from("q", Received(SimpleNamespace(redelivered=False, delivery_tag=1), properties), b"")


def from_kafka(key):
    raw = SimpleNamespace(
        headers=lambda: [("x-idempotent-key", key)],
        value=lambda: b"",
        key=lambda: None,
        timestamp=lambda: (1, 5),
    )
    return message_of_kafka(raw, "t", Position("the broker's", 0, 3, 3), False)


def from_stomp(key):
    return message_of(
        Frame("MESSAGE", {"x-idempotent-key": key, "message-id": "the broker's"}),
        "q",
        "/queue/q",
        redelivered=False,
    )


@pytest.mark.parametrize(
    ("received", "empty"), [(from_amqp, ""), (from_amqp, b""), (from_kafka, b""), (from_stomp, "")]
)
def test_an_empty_key_header_is_no_key_header_on_any_broker(received, empty):
    assert str(received(empty).id).startswith("the broker's")


@pytest.mark.parametrize("number", [0, 7])
def test_a_number_in_the_key_header_is_a_key(number):
    assert from_amqp(number).id == str(number)
