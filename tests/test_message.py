"""A Message as a value: what it is after a copy, and what its body is as JSON."""

from __future__ import annotations

import copy
import pickle
import threading
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pytest

from idempotent import Action, Message, Outcome
from idempotent.errors import UndecodableBodyError
from idempotent.message import Position, moment_of, received_message
from tests.support.consumers import consumer_of, message

FIELDS = ("subject", "body", "id", "headers", "redelivered", "position", "key", "timestamp")
ONE = Message(
    "orders",
    b"\xff{}",
    id=b"\x00",
    headers={"a": [1, {"b": "\N{GRINNING FACE}"}]},
    redelivered=True,
    position=Position("t", 1, 2, 3),
    raw=threading.Lock(),
    key=b"\xff\x00",
    timestamp=datetime(2026, 1, 1, microsecond=7, tzinfo=UTC),
)


def fields(message):
    return {name: getattr(message, name) for name in FIELDS}


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_message_is_the_same_but_for_the_clients_object(protocol):
    again = pickle.loads(pickle.dumps(ONE, protocol))
    assert fields(again) == fields(ONE)
    assert again.raw is None
    with pytest.raises(TypeError):
        again.headers["a"] = 1


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_is_the_same_and_shares_the_clients_object(copied):
    assert fields(copied(ONE)) == fields(ONE)
    assert copied(ONE).raw is ONE.raw


def test_a_deep_copy_shares_no_list_of_the_headers_and_knows_itself():
    first, second = copy.deepcopy([ONE, ONE])
    assert first is second
    first.headers["a"].append(2)
    assert ONE.headers["a"] == [1, {"b": "\N{GRINNING FACE}"}]


def test_a_message_from_a_client_library_is_as_one_that_was_made_by_hand():
    place = Position("t", 1, 2, 3)
    now = datetime.now(UTC)
    received = received_message("orders", b"{}", "7", {"a": 1}, True, place, ONE.raw, b"k", now)
    by_hand = Message(
        "orders",
        b"{}",
        id="7",
        headers={"a": 1},
        redelivered=True,
        position=place,
        raw=ONE.raw,
        key=b"k",
        timestamp=now,
    )
    assert type(received) is Message
    assert fields(received) == fields(by_hand)
    assert received.raw is ONE.raw
    with pytest.raises(FrozenInstanceError):
        received.id = "8"
    with pytest.raises(TypeError):
        received.headers["a"] = 2
    assert fields(pickle.loads(pickle.dumps(received))) == fields(by_hand)
    assert fields(copy.deepcopy(received)) == fields(by_hand)


@pytest.mark.parametrize(
    ("timestamp", "error"),
    [(1.0, TypeError), ("2026-01-01", TypeError), (datetime.now(UTC).replace(tzinfo=None), ValueError)],
)
def test_a_timestamp_is_a_datetime_with_a_zone(timestamp, error):
    with pytest.raises(error, match="timestamp must"):
        Message("orders", timestamp=timestamp)


@pytest.mark.parametrize("milliseconds", [2**62, 10**20, 253_402_300_800_000])
def test_a_time_that_no_datetime_can_hold_is_none(milliseconds):
    assert moment_of(milliseconds) is None
    assert moment_of(1_767_225_600_001) == datetime(2026, 1, 1, microsecond=1000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ("1", "1"),
        (b"\xff", b"\xff"),
        (None, None),
        (0, "0"),
        (-7, "-7"),
        (UUID(int=255), f"{'0' * 8}-0000-0000-0000-{'0' * 10}ff"),
    ],
)
def test_an_id_is_text_or_bytes_however_it_was_written(given, known):
    made = Message("orders", id=given)
    assert (type(made.id), made.id) == (type(known), known)


@pytest.mark.parametrize(
    "given",
    [True, 1.5, ["1"], object(), 1 << 20_000, bytearray(b"1")],
    ids=lambda given: type(given).__name__,
)
def test_an_id_of_another_type_is_refused_when_the_message_is_made(given):
    with pytest.raises(TypeError, match=f"id must be str, bytes, int or UUID, not {type(given).__name__}"):
        Message("orders", id=given)


def test_what_a_client_library_gives_as_an_id_can_be_copied_until_the_consumer_rejects_it():
    received = received_message("orders", b"", Decimal("1.10"), {"a": [1]}, False, None, None)
    for copied in (pickle.loads(pickle.dumps(received)), copy.deepcopy(received)):
        assert fields(copied) == fields(received)
    result = consumer_of(lambda _: None).process(received)
    assert result.outcome is Outcome.REJECTED
    assert "not Decimal" in str(result.error)


@pytest.mark.parametrize(
    ("given", "key"),
    [("customer-\N{SNOWMAN}", "customer-\N{SNOWMAN}".encode()), (b"\xff", b"\xff"), ("", b""), (None, None)],
)
def test_the_key_is_bytes_however_it_was_written(given, key):
    assert Message("orders", key=given).key == key


@pytest.mark.parametrize("key", [7, ["a"], bytearray(b"a")])
def test_a_key_that_is_neither_text_nor_bytes_is_refused(key):
    with pytest.raises(TypeError, match="key must be a str or bytes, not"):
        Message("orders", key=key)


def test_a_tombstone_is_no_empty_body_and_no_json():
    tombstone = Message("orders", None, id="7")
    assert tombstone.body is None
    assert pickle.loads(pickle.dumps(tombstone)).body is None
    assert Message("orders", id="7").body == b""
    with pytest.raises(UndecodableBodyError, match="tombstone"):
        tombstone.json()
    with pytest.raises(TypeError, match="body must be bytes, not str"):
        Message("orders", "text")


@pytest.mark.parametrize(("first", "second"), [(None, b""), (b"", None), (None, b"tombstone")])
def test_a_tombstone_has_another_fingerprint_than_any_body(first, second):
    consumer = consumer_of(lambda _: None, fingerprint=lambda message: message.body)
    given = [Message(consumer.subject, body, id="7") for body in (first, first, second)]
    outcomes = [result.outcome for result in map(consumer.process, given)]
    assert outcomes == [Outcome.PROCESSED, Outcome.DUPLICATE, Outcome.REJECTED]


BAD = [b"", b"not json", b"\xff\xfe\xfd", b'{"a": ', b"[" * 100_000]


@pytest.mark.parametrize("body", BAD, ids=["empty", "text", "bytes", "half", "deep"])
def test_a_body_that_is_no_json_is_dead_at_once_with_the_reason(body):
    ran = []

    def read(message):
        ran.append(message.id)
        return message.json()

    consumer = consumer_of(read, max_attempts=5)
    result = consumer.process(message(body=body))
    assert (result.outcome, result.action) == (Outcome.DEAD, Action.DEAD_LETTER)
    assert isinstance(result.error, UndecodableBodyError)
    assert f"the body of {len(body)} bytes is not JSON" in str(result.error)
    again = consumer.process(message(body=body))
    assert (again.outcome, "UndecodableBodyError" in str(again.error), len(ran)) == (Outcome.DEAD, True, 1)


def test_in_a_group_only_the_message_with_the_bad_body_is_dead():
    consumer = consumer_of(lambda message: message.json())
    results = consumer.process_many([message(str(n), body=body) for n, body in enumerate((b"1", b"x", b"2"))])
    assert [result.outcome for result in results] == [Outcome.PROCESSED, Outcome.DEAD, Outcome.PROCESSED]


def test_an_error_raised_from_it_is_not_tried_again_either():
    def read(message):
        try:
            return message.json()
        except ValueError as error:
            raise RuntimeError("no order") from error

    assert consumer_of(read).process(message(body=b"x")).outcome is Outcome.DEAD


def test_a_consumer_may_ignore_it():
    consumer = consumer_of(lambda message: message.json(), idempotent_for=UndecodableBodyError)
    assert consumer.process(message(body=b"x")).outcome is Outcome.IGNORED
