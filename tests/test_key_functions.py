"""Functions for `key=` and `fingerprint=` that are ready made, with what each broker's clients send."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idempotent import FingerprintMismatchError, Message, Outcome, Registry, idempotent, keys
from idempotent.checkers import MemoryChecker
from idempotent.errors import MissingKeyError, UndecodableMessageError

EVENT = {"specversion": "1.0", "source": "/orders", "id": "7", "type": "paid"}
LSN = {"before": None, "after": {}, "source": {"lsn": 77}, "op": "c"}
BINLOG = {"after": {}, "source": {"file": "bin.1", "pos": 4, "row": 2}, "op": "u"}
OF: list[tuple[Any, Message, Any]] = [
    (keys.header("payment-id"), Message("s", headers={"payment-id": "p-1"}), "p-1"),
    (keys.header("payment-id"), Message("s", headers={"payment-id": b"p-1"}), "p-1"),
    (keys.header("payment-id"), Message("s", headers={"payment-id": 5}), "5"),
    (keys.header("payment-id"), Message("s", headers={"other": "x"}), MissingKeyError),
    (keys.header("payment-id"), Message("s", headers={"payment-id": None}), MissingKeyError),
    (keys.header("payment-id"), Message("s", headers={"payment-id": ""}), MissingKeyError),
    (keys.header("payment-id"), Message("s", headers={"payment-id": [1]}), UndecodableMessageError),
    (keys.json("id"), Message("s", b'{"id": 12345678901234567890}'), "12345678901234567890"),
    (keys.json("order.id"), Message("s", b'{"order": {"id": "o-1"}}'), "o-1"),
    (keys.json("orders.0.id"), Message("s", b'{"orders": [{"id": "o-1"}]}'), "o-1"),
    (keys.json("0"), Message("s", b'["o-1"]'), "o-1"),
    (keys.json("order.id"), Message("s", b'{"order": {}}'), MissingKeyError),
    (keys.json("order.id"), Message("s", b'{"order": null}'), MissingKeyError),
    (keys.json("order.id"), Message("s", b'{"order": {"id": null}}'), MissingKeyError),
    (keys.json("orders.7"), Message("s", b'{"orders": []}'), MissingKeyError),
    (keys.json("order.id"), Message("s", b'{"order": {"id": 1.5}}'), UndecodableMessageError),
    (keys.json("order.id"), Message("s", b'{"order": {"id": true}}'), UndecodableMessageError),
    (keys.json("order"), Message("s", b'{"order": {}}'), UndecodableMessageError),
    (keys.json("order"), Message("s", b"no JSON"), UndecodableMessageError),
    (keys.json("order"), Message("s", None), UndecodableMessageError),
    (keys.json("a"), Message("s", b"[" * 100_000), UndecodableMessageError),
    *(
        (keys.cloudevents, Message("s", headers={f"{each}source": "/orders", f"{each}id": "7"}), "/orders 7")
        for each in ("ce_", "ce-", "cloudEvents:", "cloudEvents_")
    ),
    (keys.cloudevents, Message("s", headers={"ce_source": b"/orders", "ce_id": b"7"}), "/orders 7"),
    (keys.cloudevents, Message("s", json.dumps(EVENT).encode()), "/orders 7"),
    (keys.cloudevents, Message("s", headers={"Ce-Id": "7", "Ce-Source": "/orders"}), "/orders 7"),
    (keys.cloudevents, Message("s", b'{"source": "/a", "id": ""}'), MissingKeyError),
    (keys.cloudevents, Message("s", b'{"source": "/a", "id": null}'), MissingKeyError),
    (keys.cloudevents, Message("s", b'{"id": "7"}'), MissingKeyError),
    (keys.cloudevents, Message("s", headers={"ce_id": "7"}), MissingKeyError),
    (keys.cloudevents, Message("s", headers={"ce_source": "a b", "ce_id": "7"}), UndecodableMessageError),
    (keys.cloudevents, Message("s", b"[1]"), UndecodableMessageError),
    (keys.debezium, Message("s", headers={"id": "e-1"}), "e-1"),
    (keys.debezium, Message("s", json.dumps(LSN).encode(), key=b"k"), "b'k' 77 c"),
    (keys.debezium, Message("s", json.dumps({"schema": {}, "payload": LSN}).encode(), key=b"k"), "b'k' 77 c"),
    (keys.debezium, Message("s", json.dumps(BINLOG).encode(), key=b"k"), "b'k' bin.1 4 2 u"),
    (keys.debezium, Message("s", None, id="t/0/5"), "t/0/5"),
    (keys.debezium, Message("s", json.dumps(LSN).encode(), id="t/0/5"), "t/0/5"),
    (keys.debezium, Message("s", b"{}", key=b"k"), MissingKeyError),
    (keys.celery, Message("s", headers={"id": "task-1", "task": "mail"}), "task-1"),
    (keys.celery, Message("s"), MissingKeyError),
]


@pytest.mark.parametrize(("key", "message", "wanted"), OF, ids=[str(number) for number in range(len(OF))])
def test_the_key_of_a_message(key: Any, message: Message, wanted: Any) -> None:
    @Registry().consumer("s", group="g", checker=MemoryChecker(), key=key)
    def handle(message: Message) -> None: ...

    result = handle.process(message)
    if isinstance(wanted, str):
        assert result.outcome is Outcome.PROCESSED
        assert handle.key_in(message) == handle.key_of(wanted)
    else:
        assert result.outcome is Outcome.REJECTED
        assert type(result.error) is wanted


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=15,
)


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in reversed(value)}
    return [reordered(each) for each in value] if isinstance(value, list) else value


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON: True is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@given(JSON, JSON)
def test_the_same_json_has_one_fingerprint_and_other_json_another(one: Any, other: Any) -> None:
    def of(value: Any, **options: Any) -> bytes:
        return keys.canonical_json(Message("s", json.dumps(value, **options).encode()))

    assert (
        of(one) == of(reordered(one), indent=3, ensure_ascii=False) if "\\ud" not in json.dumps(one) else True
    )
    assert (of(one) == of(other)) is same(one, other)


def test_a_number_is_its_value() -> None:
    bodies = (b'{"a": 50}', b'{"a":50.0}', b'{"a":500e-1}', b'{ "a" : 0.5E+2 }', b'{"a":5e1}')
    assert len({keys.canonical_json(Message("s", each)) for each in bodies}) == 1
    assert keys.canonical_json(50, a=[1.5]) == keys.canonical_json(50.0, a=(Decimal("1.50"),))
    others = (b"12345678901234567.89", b"12345678901234567.11", b"9007199254740993.0", b"9007199254740992")
    others += (
        b"0.1",
        b"0.10000000000000000001",
        b"1e-400",
        b"0",
        b"-0.1",
        b"1",
        b'"1"',
        b"[1]",
        b'["n","1e0"]',
    )
    others += (b"1e999999999", b"1e999999998", b'["l"]', b"[]", b"true", b"null", b"9" * 5000, b"9" * 5001)
    assert len({keys.canonical_json(Message("s", each)) for each in others}) == len(others)
    assert keys.canonical_json(Message("s", b"-0.0")) == keys.canonical_json(Message("s", b"0"))
    for wrong in ({1: "a"}, float("nan"), float("inf"), Decimal("NaN")):
        with pytest.raises((TypeError, ValueError)):
            keys.canonical_json(wrong)
    assert keys.canonical_json(Message("s", None)) != keys.canonical_json(Message("s", b'""'))


@pytest.mark.parametrize("body", [b"x", b"NaN", b"[Infinity]", b"[" * 100_000, b"\xff"])
def test_content_that_is_no_json_is_rejected(body: bytes) -> None:
    @Registry().consumer("s", group="g", checker=MemoryChecker(), fingerprint=keys.canonical_json)
    def handle(message: Message) -> None:
        pytest.fail("it ran")

    result = handle.process(Message("s", body, id="1"))
    assert (result.outcome, type(result.error)) == (Outcome.REJECTED, UndecodableMessageError)


def test_the_arguments_of_a_function_have_a_fingerprint() -> None:
    @idempotent(MemoryChecker(), group="g", key="order", fingerprint=keys.canonical_json)
    def charge(order: str, amount: Decimal, *, on: dt.date, by: uuid.UUID) -> str:
        return str(amount)

    given_: dict[str, Any] = {"on": dt.date(2026, 11, 28), "by": uuid.UUID(int=1)}
    assert charge("a", Decimal("1.10"), **given_) == charge("a", Decimal("1.10"), **given_) == "1.10"
    with pytest.raises(FingerprintMismatchError):
        charge("a", Decimal("1.20"), **given_)
    with pytest.raises(TypeError, match="a bytes is not JSON"):
        charge("a", b"1", **given_)  # type: ignore[arg-type]
