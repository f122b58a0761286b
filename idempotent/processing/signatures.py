"""Types of what a handler takes and returns, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Sized
from contextlib import AbstractContextManager
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, SupportsFloat, TypeAlias


class Ordered(Protocol):
    """A number, a text, a date."""

    def __lt__(self, other: Any, /) -> bool:
        """Compare."""


class Dataclass(Protocol):
    """A dataclass, such as `Message`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class Struct(Protocol):
    """A Struct of msgspec."""

    __struct_fields__: ClassVar[tuple[str, ...]]


class Model(Protocol):
    """A model of pydantic."""

    __pydantic_validator__: ClassVar[Any]


if TYPE_CHECKING:
    Returned: TypeAlias = (
        Sized | SupportsFloat | Ordered | Dataclass | Enum | AbstractContextManager[Any, Any] | None
    )
    """What a plain handler may return.

    Types cannot say "all but coroutines and generators", so this names what is finished: texts, numbers, containers,
    dates, dataclasses, enums, results of statements. A handler that returns another class is annotated `-> Any`.
    """
    Decoded: TypeAlias = Dataclass | Struct | Model
    """What the body of a message is decoded to."""
