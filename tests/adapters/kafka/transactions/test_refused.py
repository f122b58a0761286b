"""Outputs that cannot be sent."""

from __future__ import annotations

import logging
import secrets

import pytest

from idempotent import Message
from idempotent.adapters.copies import REASON_HEADER
from idempotent.policy import Backoff
from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.line import Line
from tests.support.logs import events


class Broken:
    """Outputs that cannot be read."""

    def __iter__(self):
        raise ZeroDivisionError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("text", "not str"),
        ({"order": 1}, "not str"),
        (7, "not int"),
        ([Message("invoices"), 7], "not int"),
        ([Message("invoices", headers={1: "x"})], "a header's name is of type int"),
        (Broken(), "ZeroDivisionError"),
        ((Message("invoices") for _ in "x"), "ConfigurationError: the handler returned a generator"),
        (Message("no\0topic"), "no\0topic: embedded null character"),
        (Message("no topic!"), "for no topic!: "),
        (Message("nobody-made-this-topic"), "for nobody-made-this-topic: "),
        (Message("invoices", b"x" * 3_000_000), "Message size too large"),
    ],
)
def test_a_message_whose_outputs_cannot_be_sent_is_a_dead_letter(broker, value, reason):
    line = Line(broker)
    line.send(3)

    def handle(message):
        if message.body != b"1":
            return line.pass_on(message)
        if isinstance(value, Message) and value.subject == "invoices":
            return Message(line.target, value.body)
        return value

    quick = {"topic.metadata.propagation.max.ms": 500}
    with line.working(handle, line.adapter(producer_config=quick)):
        until(line.is_through(3), "all offsets")
    assert line.arrived() == [0, 2]
    (letter,) = line.letters()
    assert letter.body == b"1"
    assert reason.replace("\0", "") in letter.headers[REASON_HEADER].replace("\0", "")


@pytest.mark.slow
def test_an_output_that_is_too_large_takes_none_with_it_that_shares_its_batch(broker):
    line = Line(broker, **{"max.message.bytes": 2000})
    line.send(20)
    bad = {5, 14}

    def handle(message):
        return Message(line.target, message.body.rjust(5000 if int(message.body) in bad else 500))

    adapter = line.adapter(
        commit_interval_s=1.0, max_in_flight_per_partition=20, producer_config={"linger.ms": 50}
    )
    with line.working(handle, adapter, batch_size=20):
        until(line.is_through(20), "all offsets")
    assert line.arrived() == [number for number in range(20) if number not in bad]
    assert {int(letter.body) for letter in line.letters()} == bad


@pytest.mark.slow
def test_outputs_that_nobody_takes_hold_back_their_partition_alone_until_their_letter_is_safe(
    broker, caplog, monkeypatch
):
    monkeypatch.setattr(
        "idempotent.adapters.kafka.adapter._COPY_BACKOFF", Backoff(initial_s=0.2, maximum_s=1.0)
    )
    line = Line(broker, 2)
    line.send(10)
    nowhere = f"nowhere-{secrets.token_hex(6)}"

    def handle(message):
        return Message(nowhere) if message.body == b"2" else line.pass_on(message)

    quick = {"topic.metadata.propagation.max.ms": 500, "message.timeout.ms": 1000}
    letters = f"letters-{secrets.token_hex(6)}"
    adapter = line.adapter(producer_config=quick, dead_letter_topic=letters)
    with caplog.at_level(logging.WARNING), line.working(handle, adapter):
        until(lambda: line.committed() == 5 + 1, "all of the other partition")
        until(lambda: "copy_failed" in events(caplog), "an error")
        assert line.committed() == 6
        until(lambda: events(caplog).count("copy_failed") > 2, "more of them")
        for number in (11, 13, 15):
            broker.send(line.source, str(number).encode(), partition=1)
            broker.flush()
            until(lambda number=number: number in line.arrived(), "the other partition goes on")
        broker.make(letters)
        until(line.is_through(13), "all offsets")
    assert sorted(line.arrived()) == [0, 1, 3, 4, 5, 6, 7, 8, 9, 11, 13, 15]
    assert {letter.body for letter in broker.read(letters)} == {b"2"}


def test_a_message_that_fails_for_good_is_a_dead_letter_and_the_others_go_on(broker):
    line = Line(broker)
    line.send(3)

    def handle(message):
        if message.body == b"1":
            raise ValueError("poison")
        return line.pass_on(message)

    with line.working(handle, max_attempts=2, backoff=Backoff(0.05, 0.1)):
        until(line.is_through(3), "all offsets")
    assert line.arrived() == [0, 2]
    (letter,) = line.letters()
    assert letter.headers[REASON_HEADER] == "ValueError: poison"
