"""A handler with a class as its first parameter takes the decoded body; one that does not fit is rejected."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import enum
import json
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import pydantic
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from idempotent import Message, Outcome, Registry, Worker
from idempotent.adapters import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker, TransactionalSqlChecker
from idempotent.errors import ConfigurationError, UnfitBodyError
from idempotent.migrations import upgrade
from tests.support.awaited import Awaited

T = TypeVar("T")
SECRET = "anne@example.com"


@dataclass
class Order:
    number: str
    cents: int

    def __post_init__(self) -> None:
        if self.cents < 0:
            raise ValueError(f"{SECRET} owes {self.cents}")


class Model(pydantic.BaseModel):
    number: str
    cents: int

    @pydantic.field_validator("cents")
    @classmethod
    def not_negative(cls, cents: int) -> int:
        if cents < 0:
            raise ValueError(f"{SECRET} owes {cents}")
        return cents


class Struct(msgspec.Struct):
    number: str
    cents: Annotated[int, msgspec.Meta(ge=0)]


@dataclass
class Page(Generic[T]):
    first: T


class ByAlias(pydantic.BaseModel):
    order_number: str = pydantic.Field(alias="orderNumber")


@dataclass
class Aliased:
    inner: ByAlias


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Painted:
    colour: Colour


KINDS = [Order, Model, Struct]
GOOD = b'{"number": "o-1", "cents": 5}'
BAD = {
    "of another type": (b'{"number": "o-1", "cents": "anne@example.com"}', "cents"),
    "missing": (b'{"number": "anne@example.com"}', "cents"),
    "refused by the class": (b'{"number": "anne@example.com", "cents": -1}', ""),
    "cut off": (b'{"number": "anne@example.com', "the top"),
    "not UTF-8": (b'{"number": "\xff", "cents": 1}', ""),
    "another kind": (b'["anne@example.com"]', "the top"),
    "deep": (b"[" * 100_000, ""),
    "empty": (b"", "the top"),
    "none": (None, "tombstone"),
}


def consumer_of(function: Any, *, is_async: bool = False, **options: Any) -> Any:
    options.setdefault("checker", MemoryChecker())
    if not is_async:
        return Registry().consumer("orders", **options)(function)

    async def handle(body: Any, message: Message) -> Any:
        await asyncio.sleep(0)
        return function(body, message)

    handle.__annotations__ = {**function.__annotations__, "message": Message}
    return Awaited(Registry().consumer("orders", **options)(handle))


def of_kind(kind: Any, **options: Any) -> tuple[Any, list[Any]]:
    taken: list[Any] = []

    def handle(body: Any, message: Message) -> int:
        taken.append((body, message))
        return int(body.cents)

    handle.__annotations__ = {"body": kind, "message": Message}
    return consumer_of(handle, **options), taken


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_takes_the_body_and_the_message(kind: Any, is_async: bool) -> None:
    consumer, taken = of_kind(kind, is_async=is_async, store_result=True)
    message = Message("orders", GOOD, id="1")
    assert consumer.process(message).value == 5
    assert taken == [(kind(number="o-1", cents=5), message)]
    duplicate = consumer.process(message)
    assert (duplicate.outcome, duplicate.value, len(taken)) == (Outcome.DUPLICATE, 5, 1)


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_body_that_does_not_fit_is_rejected(kind: Any, is_async: bool, bad: Any) -> None:
    body, where = bad
    consumer, taken = of_kind(kind, is_async=is_async)
    good = [Message("orders", GOOD, id="good"), Message("orders", GOOD, id="good too")]
    for result in (
        consumer.process(Message("orders", body, id="1")),
        consumer.process_many([good[0], Message("orders", body, id="1"), good[1]])[1],
        consumer.process_many([Message("orders", body, id="1")])[0],
    ):
        assert (result.outcome, result.attempt) == (Outcome.REJECTED, None)
        assert isinstance(result.error, UnfitBodyError)
        assert where in str(result.error)
        shown = "".join(traceback.format_exception(result.error))
        assert SECRET not in shown
        assert result.error.__context__ is None
    assert [message for _, message in taken] == good
    # It has left no key: the same id with a body that fits runs.
    assert consumer.process(Message("orders", GOOD, id="1")).outcome is Outcome.PROCESSED


RAISES: list[Exception] = []


def raise_next() -> None:
    if RAISES:
        raise RAISES.pop()


@dataclass
class AskingData:
    cents: int

    def __post_init__(self) -> None:
        raise_next()


class AskingStruct(msgspec.Struct):
    cents: int

    def __post_init__(self) -> None:
        raise_next()


class AskingModel(pydantic.BaseModel):
    cents: int

    @pydantic.model_validator(mode="after")
    def ask(self) -> Any:
        raise_next()
        return self


@pytest.mark.parametrize("kind", [AskingData, AskingStruct, AskingModel])
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError, Outcome.REJECTED),
        (TypeError, Outcome.REJECTED),
        (AssertionError, Outcome.REJECTED),
        (ConnectionError, Outcome.FAILED),
        (LookupError, Outcome.FAILED),
    ],
)
def test_the_class_refuses_a_body_and_what_else_fails_in_it_is_tried_again(
    kind: Any, error: type[Exception], outcome: Outcome
) -> None:
    consumer, taken = of_kind(kind)
    RAISES[:] = [error(SECRET)]
    result = consumer.process(Message("orders", GOOD, id="1"))
    assert (result.outcome, result.attempt) == (outcome, None if outcome is Outcome.REJECTED else 1)
    assert type(result.error) is (UnfitBodyError if outcome is Outcome.REJECTED else error)
    assert (consumer.process(Message("orders", GOOD, id="1")).outcome, len(taken)) == (Outcome.PROCESSED, 1)


def test_the_error_names_each_field() -> None:
    consumer, _ = of_kind(Model)
    error = consumer.process(Message("orders", b'{"cents": "x"}', id="1")).error
    assert str(error) == "the body of 14 bytes does not fit Model: missing at number; int_parsing at cents"
    consumer, _ = of_kind(Annotated[Struct, "a note"])
    error = consumer.process(Message("orders", b'{"number": "o", "cents": -1}', id="1")).error
    assert str(error).endswith("does not fit Struct: Expected `int` >= 0 at cents")
    consumer, _ = of_kind(Painted)
    for colour in (SECRET, f"it's {SECRET}", f"'{SECRET}'", f'"{SECRET}"', f"""'"{SECRET}"'"""):
        body = json.dumps({"colour": colour}).encode()
        error = consumer.process(Message("orders", body, id="1")).error
        assert str(error).endswith("does not fit Painted: Invalid enum value ... at colour")
    consumer, _ = of_kind(Page[Model])
    error = consumer.process(Message("orders", b'{"first": {"number": "o"}}', id="1")).error
    assert str(error).endswith("does not fit Page: missing at first.cents")


def test_a_body_is_read_once_for_a_run_and_not_at_all_for_a_duplicate() -> None:
    read: list[int] = []

    @dataclass
    class Counted:
        cents: int

        def __post_init__(self) -> None:
            read.append(self.cents)

    consumer, _ = of_kind(Counted, store_result=True)
    message = Message("orders", GOOD, id="1")
    assert [consumer.process(message).outcome for _ in range(3)] == [Outcome.PROCESSED] + [
        Outcome.DUPLICATE
    ] * 2
    assert read == [5]
    # What is done stays done, whatever the class of today says of it.
    assert consumer.process(Message("orders", b"{}", id="1")).outcome is Outcome.DUPLICATE


class Foreign(pydantic.BaseModel, strict=True):
    order_number: str = pydantic.Field(alias="orderNumber")
    at: dt.datetime


@pydantic.dataclasses.dataclass
class Checked:
    order_number: Annotated[str, pydantic.Field(alias="orderNumber", max_length=3)]


@pytest.mark.parametrize(
    ("kind", "body", "bad", "why"),
    [
        (
            Foreign,
            '{"orderNumber": "o-1", "at": "2026-01-02T03:04:05Z"}',
            '{"orderNumber": 1}',
            "missing at at",
        ),
        (Checked, '{"orderNumber": "o-1"}', '{"orderNumber": "long"}', "string_too_long at orderNumber"),
    ],
)
def test_models_of_pydantic_are_read_as_pydantic_reads_json(kind: Any, body: str, bad: str, why: str) -> None:
    taken: list[Any] = []

    def handle(body: Any) -> None:
        taken.append(body)

    handle.__annotations__["body"] = kind
    consumer = consumer_of(handle)
    assert consumer.process(Message("orders", body.encode(), id="1")).outcome is Outcome.PROCESSED
    assert taken == [pydantic.TypeAdapter(kind).validate_json(body)]
    assert why in str(consumer.process(Message("orders", bad.encode(), id="2")).error)


def test_a_model_in_a_dataclass_is_read_by_its_aliases() -> None:
    def handle(taken: Aliased) -> str:
        return taken.inner.order_number

    consumer = consumer_of(handle)
    assert consumer.process(Message("orders", b'{"inner": {"orderNumber": "o"}}', id="1")).value == "o"
    error = consumer.process(Message("orders", b'{"inner": {"order_number": "o"}}', id="2")).error
    assert str(error).endswith("does not fit Aliased: missing at inner.orderNumber")


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_a_copy_in_a_group_has_a_body_of_its_own(is_async: bool) -> None:
    consumer, taken = of_kind(Order, is_async=is_async)
    bodies = {"1": [b"{}", GOOD, b"{}"], "2": [GOOD, b"{}"]}
    messages = [Message("orders", body, id=key) for key, each in bodies.items() for body in each]
    outcomes = [result.outcome.value for result in consumer.process_many(messages)]
    assert outcomes == ["rejected", "processed", "duplicate", "processed", "duplicate"]
    assert len(taken) == 2


@pytest.mark.parametrize("savepoints", [False, True])
def test_a_body_that_does_not_fit_undoes_no_other_of_its_transaction(
    savepoints: bool, tmp_path: Path
) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/keys.db")
    upgrade(engine.url)
    checker = TransactionalSqlChecker(engine, savepoints=savepoints)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE booked (cents INTEGER)"))

    def book(order: Order, session: Session) -> None:
        session.execute(sa.text("INSERT INTO booked VALUES (:cents)"), {"cents": order.cents})

    consumer = consumer_of(book, checker=checker)
    bodies = [GOOD, b"{}", GOOD, b"{}"]
    messages = [Message("orders", body, id=str(number)) for number, body in enumerate(bodies)]
    for expected in (["processed", "rejected"] * 2, ["duplicate", "rejected"] * 2):
        assert [result.outcome.value for result in consumer.process_many(messages)] == expected
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM booked")) == 2
    assert checker.admin().get(consumer.key_of("1")) is None
    engine.dispose()


def test_a_consumer_may_ignore_what_does_not_fit() -> None:
    consumer, taken = of_kind(Order, idempotent_for=UnfitBodyError)
    assert [consumer.process(Message("orders", b"{}", id="1")).outcome for _ in range(2)] == [
        Outcome.IGNORED,
        Outcome.DUPLICATE,
    ]
    assert not taken


def test_attempts_and_fatal_errors_do_not_matter_to_it() -> None:
    consumer, _ = of_kind(Order, max_attempts=1, retry_for=(), dead_for=Exception)
    for _ in range(3):
        assert consumer.process(Message("orders", b"{}", id="1")).outcome is Outcome.REJECTED
    assert consumer.process(Message("orders", GOOD, id="1")).outcome is Outcome.PROCESSED


def test_a_body_without_a_key_is_rejected_also_where_it_would_run() -> None:
    consumer, taken = of_kind(Order, on_missing_key="process")
    assert consumer.process(Message("orders", b"{}")).outcome is Outcome.REJECTED
    assert consumer.process(Message("orders", GOOD)).outcome is Outcome.PROCESSED
    assert len(taken) == 1


def test_each_attempt_has_a_body_of_its_own() -> None:
    seen: list[int] = []

    def handle(order: Order) -> None:
        seen.append(order.cents)
        order.cents += 1
        if len(seen) == 1:
            raise ConnectionError

    consumer = consumer_of(handle)
    message = Message("orders", GOOD, id="1")
    assert [consumer.process(message).outcome for _ in range(2)] == [Outcome.FAILED, Outcome.PROCESSED]
    assert seen == [5, 5]


@pytest.mark.parametrize("with_message", [False, True])
def test_a_session_comes_last(with_message: bool, tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/keys.db")
    upgrade(engine.url)
    checker = TransactionalSqlChecker(engine)
    taken: list[Any] = []

    def three(order: Order, message: Message, session: Session) -> None:
        taken.append((order.cents, message.id, session.scalar(sa.text("SELECT 7"))))

    def two(order: Order, session: Session) -> None:
        taken.append((order.cents, "1", session.scalar(sa.text("SELECT 7"))))

    consumer = consumer_of(three if with_message else two, checker=checker)
    assert consumer.process(Message("orders", GOOD, id="1")).outcome is Outcome.PROCESSED
    assert taken == [(5, "1", 7)]
    engine.dispose()


def test_a_call_of_its_own_reads_no_body() -> None:
    consumer, _ = of_kind(Order)
    assert consumer.process(Message("orders", b"", id="1"), call=lambda: "ran").value == "ran"


def test_a_unit_test_calls_the_handler_with_an_object() -> None:
    consumer, _ = of_kind(Order)
    assert consumer.__wrapped__(Order("o-1", 9), Message("orders")) == 9


def a_list(orders: list[Order]) -> None: ...
def a_union(order: Order | None) -> None: ...
def unknown(order: Unknown) -> None: ...  # type: ignore[name-defined] # noqa: F821
def a_number(order: Order, message: Message, number: int) -> None: ...
def four(order: Order, message: Message, session: Session, more: int) -> None: ...


@dataclass
class Odd:
    what: traceback.StackSummary


def odd(order: Odd) -> None: ...


@dataclass
class OwnInit:
    cents: int

    def __init__(self, cents: int) -> None:
        self.cents = abs(cents)


@dataclass
class Outer:
    inner: list[OwnInit]


class Later(Order):
    def __init__(self) -> None:
        super().__init__("o-1", 5)


@dataclass
class Computed:
    cents: int
    euros: float = dataclasses.field(init=False)


@dataclass
class OfPydantic:
    inner: Checked


def own_init(order: OwnInit) -> None: ...
def outer(order: Outer) -> None: ...
def later(order: Later) -> None: ...
def computed(order: Computed) -> None: ...
def of_pydantic(order: OfPydantic) -> None: ...


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (a_list, "a handler takes one body"),
        (a_union, "a handler takes one body"),
        (unknown, "import the name at run time"),
        (a_number, "must be an SQLAlchemy Session"),
        (four, "but takes 4 parameters"),
        (odd, "cannot be read for the first parameter of odd"),
        (own_init, "OwnInit has an __init__ of its own, which would not be called"),
        (outer, "OwnInit has an __init__ of its own"),
        (later, "Later has an __init__ of its own"),
        (computed, "the field euros of Computed has init=False: give it a default"),
        (of_pydantic, "Checked has an __init__ of its own"),
    ],
)
def test_what_gets_no_body_is_refused_where_it_is_declared(function: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        consumer_of(function)


@pytest.mark.parametrize("kind", ["list[Order]", "Order"])
def test_a_batch_takes_messages(kind: str) -> None:
    def handle(orders: Any) -> None: ...

    handle.__annotations__["orders"] = kind
    with pytest.raises(ConfigurationError, match=r"with batch=True it takes a list\[Message\]"):
        consumer_of(handle, batch=True)


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_a_worker_sends_a_body_that_does_not_fit_to_the_dead_letters(is_async: bool) -> None:
    broker, registry, taken = MemoryBroker(), Registry(), []

    def handle(order: Order) -> None:
        taken.append(order.cents)

    async def handle_async(order: Order) -> None:
        handle(order)

    registry.consumer("orders", checker=MemoryChecker())(handle_async if is_async else handle)
    for number in range(20):
        body = {"number": "o", "cents": SECRET if number == 7 else number}
        broker.publish(Message("orders", json.dumps(body).encode(), id=str(number)))
    summary = Worker(registry, MemoryAdapter(broker, until_empty=True), concurrency=2).run()
    assert summary[Outcome.REJECTED] == 1
    assert sorted(taken) == [number for number in range(20) if number != 7]
    (dead,) = broker.dead_letters("orders")
    assert dead.message.id == "7"
    assert "Expected `int`, got `str` at cents" in dead.reason
    assert SECRET not in dead.reason
