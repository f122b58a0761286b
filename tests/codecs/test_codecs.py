"""Every kind of result: what is stored of it, and what is read again; and what is refused before an effect."""

from __future__ import annotations

import datetime as dt
import enum
import json
import math
import pickle
import subprocess
import sys
import typing
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from idempotent import ConfigurationError, ResultNotStoredError, idempotent
from idempotent.checkers import MemoryChecker
from idempotent.codecs import Codec, Framed, JsonCodec, codec_for

if typing.TYPE_CHECKING:
    from elsewhere import Unknown  # type: ignore[import-not-found]


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 2


@dataclass
class Line:
    item: str
    price: Decimal


@dataclass(eq=False)
class Order:
    number: uuid.UUID
    lines: list[Line]
    at: dt.datetime
    tags: frozenset[str] = frozenset()


class Model(pydantic.BaseModel):
    name: str
    at: dt.datetime
    lines: list[Line] = []


class Struct(msgspec.Struct):
    name: str
    model: Model | None = None


class Pair(typing.NamedTuple):
    left: int
    right: str


@dataclass
class Loose:
    anything: Any


@dataclass
class Priced(Line):
    discount: Decimal


class Bag(pydantic.BaseModel):
    anything: Any

    def __init__(self, anything: Any) -> None:
        super().__init__(anything=anything)


class Secretive(pydantic.BaseModel, extra="allow"):
    name: str
    _seen: int = pydantic.PrivateAttr(default=0)

    def after(self, seen: int) -> Secretive:
        self._seen = seen
        return self


class Aliased(pydantic.BaseModel):
    cents: int = pydantic.Field(alias="amountCents")
    inner: Model | None = pydantic.Field(default=None, serialization_alias="inside")


class Shape(typing.TypedDict):
    sides: int


NOW = dt.datetime(2026, 11, 28, 12, 30, 1, 5, dt.UTC)
LINE = Line("lamp", Decimal("1.10"))
EXACT: list[tuple[Any, Any]] = [
    (Any, {"a": [1, 1.5, "x", None, True, {"b": []}]}),
    (type(None), None),
    (int, 10**40),
    (str, "ä\ud800\0"),
    (list[dict[str, int | None]], [{"a": None}, {"b": 2}]),
    (bytes, b"\0\xff"),
    (dt.datetime, NOW),
    (dt.date, NOW.date()),
    (dt.timedelta, dt.timedelta(days=2, microseconds=5)),
    (Decimal, Decimal("1.10")),
    (uuid.UUID, uuid.UUID(int=5)),
    (set[int], {1, 2}),
    (tuple[int, str], (1, "x")),
    (dict[int, str], {1: "x"}),
    (Colour, Colour.RED),
    (Level, Level.HIGH),
    (Line, LINE),
    (Pair, Pair(1, "x")),
    (Shape, {"sides": 3}),
    (Struct, Struct("a", Model(name="b", at=NOW, lines=[LINE]))),
    (Model, Model(name="b", at=NOW)),
    (list[Model], [Model(name="b", at=NOW)]),
    (Model | None, None),
    (Line | None, LINE),
    (Loose, Loose({"a": [1, None, {"b": 1.5}]})),
    (Secretive, Secretive(name="x", more=[1])),  # type: ignore[call-arg]
    (str, "\N{GRINNING FACE}"),
    (Aliased, Aliased(amountCents=5, inner=Model(name="b", at=NOW))),
    (list[Aliased], [Aliased(amountCents=5)]),
]


def of(annotation: Any) -> Codec:
    def function() -> None: ...

    function.__annotations__["return"] = annotation
    return Framed(codec_for(function))  # type: ignore[return-value]  # it has no name


@pytest.mark.parametrize(("annotation", "value"), EXACT, ids=lambda each: type(each).__name__)
def test_a_duplicate_gets_what_the_first_call_got(annotation: Any, value: Any) -> None:
    codec = of(annotation)
    again = codec.decode(codec.encode(value))
    assert again == value
    assert type(again) is type(value)


def test_a_class_that_does_not_compare_its_objects_is_read_too() -> None:
    order = Order(uuid.UUID(int=1), [LINE], NOW, frozenset({"x"}))
    codec = of(Order)
    again = codec.decode(codec.encode(order))
    assert (again.number, again.lines, again.at, again.tags) == (order.number, [LINE], NOW, {"x"})


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Any, (1, 2)),
        (Any, {1: "x"}),
        (Any, {"a": {None: 1}}),
        (Any, math.nan),
        (Any, [math.inf]),
        (Any, Level.HIGH),
        (Any, Pair(1, "x")),
        (Any, {1}),
        (Any, b"x"),
        (Any, NOW),
        (Any, LINE),
        (Any, object()),
        (int, Level.HIGH),
        (bytes, "x"),
        (bytes, bytearray(b"x")),
        (float | set[int], math.nan),
        (Line, {"item": "lamp", "price": "1.10"}),
        (Line, Struct("x")),
        (Line, None),
        (Struct, Struct("x", LINE)),  # type: ignore[arg-type]
        (Model, Struct("x")),
        (tuple[int, ...], [1]),
        (Loose, Loose({"a": [(1, 2)]})),
        (Loose, Loose([NOW])),
        (Loose, Loose({1: "x"})),
        (list[Line], [Priced("lamp", Decimal(1), Decimal(2))]),
        (Bag, Bag((1, 2))),
        (Sequence[int], (1,)),
        (dt.datetime, object()),
        (dt.datetime, dt.datetime(2026, 10, 25, 2, 30, fold=1)),  # noqa: DTZ001
        (Secretive, Secretive(name="x").after(1)),
        (Secretive, Secretive(name="x", more=(1,))),  # type: ignore[call-arg]
        (str, "\ud83d\ude00"),
        (Any, {"\ud83d\ude00": 1, "\N{GRINNING FACE}": 2}),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_would_be_changed_is_not_stored(annotation: Any, value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        of(annotation).encode(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.tuples(st.integers()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@given(JSON)
def test_json_is_exact_or_refused(value: Any) -> None:
    codec = JsonCodec()
    try:
        encoded = codec.encode(value)
    except ValueError:
        return
    again = codec.decode(encoded)
    assert repr(again) == repr(value)


def test_deep_and_circular_values_are_refused_without_harm() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    circle: list[Any] = []
    circle.append(circle)
    for value in (deep, circle):
        with pytest.raises((RecursionError, ValueError)):
            JsonCodec().encode(value)


class File: ...


def returns_a_file(key: str) -> File: ...  # type: ignore[empty-body]
def returns_files(key: str) -> dict[str, list[File]]: ...  # type: ignore[empty-body]
def returns_a_path(key: str) -> Path | None: ...
def returns_what_only_a_checker_knows(key: str) -> Unknown: ...


def returns_a_local() -> Any:
    @dataclass
    class Local:
        name: str = field(default="x")

    def function(key: str) -> Local:
        return Local()

    return function


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (
            returns_a_file,
            r"returns_a_file is annotated with a result that cannot be stored .*File.*give codec=",
        ),
        (returns_files, r"File"),
        (returns_a_path, r"Path"),
        (
            returns_what_only_a_checker_knows,
            r"returns Unknown, which cannot be read .*not under TYPE_CHECKING",
        ),
        (returns_a_local(), r"at the top of a module"),
    ],
)
def test_a_result_that_no_codec_stores_is_refused_before_any_effect(function: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        idempotent(MemoryChecker(), group="tests", key="key")(function)


class Changed:
    name = "own/1"

    def encode(self, value: Any) -> bytes:
        return repr(value).encode()

    def decode(self, data: bytes) -> Any:
        raise ValueError(data)


@dataclass
class Before:
    item: str


@dataclass
class After:
    item: str
    amount: int = 1


@dataclass
class Broken:
    item: str
    amount: int


def test_a_type_that_changed_reads_what_it_can_and_nothing_else() -> None:
    stored = of(Before).encode(Before("lamp"))
    assert of(After).decode(stored) == After("lamp", 1)
    with pytest.raises(ResultNotStoredError, match="cannot be read: ValidationError"):
        of(Broken).decode(stored)
    for other in (of(bytes), of(Any), Framed(Changed())):
        with pytest.raises(ResultNotStoredError, match="another codec"):
            other.decode(stored)
    with pytest.raises(ResultNotStoredError, match="another codec"):
        of(Any).decode(json.dumps({"item": "lamp"}).encode())  # of a consumer with store_result=True
    with pytest.raises(ResultNotStoredError, match="cannot be read: ValueError"):
        Framed(Changed()).decode(Framed(Changed()).encode(1))


def test_a_codec_of_your_own_is_checked() -> None:
    class NotBytes(Changed):
        def encode(self, value: Any) -> Any:
            return "x"

    for name in ("", "x" * 101, "a\0b", "ä", 5):
        codec = Changed()
        codec.name = name  # type: ignore[assignment]
        with pytest.raises(ConfigurationError, match="name"):
            Framed(codec)
    with pytest.raises(TypeError, match="own/1 made a str, not bytes"):
        Framed(NotBytes()).encode(1)


def test_the_error_of_a_result_that_is_not_stored_can_be_pickled() -> None:
    error = ResultNotStoredError("gone")
    assert str(pickle.loads(pickle.dumps(error))) == "gone"


def test_plain_results_need_no_library() -> None:
    program = (
        "import sys; sys.modules['msgspec'] = None\n"
        "from idempotent.codecs import codec_for\nfrom datetime import datetime\n"
        "def plain() -> dict[str, int]: ...\ndef dated() -> datetime: ...\n"
        "print(type(codec_for(plain)).__name__)\n"
        "try:\n    codec_for(dated)\nexcept Exception as error:\n    print(error)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    missing = 'msgspec is not installed. Type: pip install "idempotent-consumer[codecs]"'
    assert said.splitlines() == ["JsonCodec", missing]
