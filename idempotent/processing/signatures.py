"""Types of what a handler takes and returns, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sized
from contextlib import AbstractContextManager
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, SupportsFloat, TypeAlias, TypeVar

from idempotent.message import Message

if TYPE_CHECKING:
    # At run time a consumer without a session does not need SQLAlchemy.
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session


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

    Awaited: TypeAlias = Coroutine[Any, Any, object]
    """What a call of an `async def` handler returns."""

    PlainHandler = TypeVar(
        "PlainHandler",
        bound=Callable[[Message], Returned]
        | Callable[[Message, Session], Returned]
        | Callable[[Message, Connection], Returned],
    )
    AsyncHandler = TypeVar(
        "AsyncHandler",
        bound=Callable[[Message], Awaited]
        | Callable[[Message, AsyncSession], Awaited]
        | Callable[[Message, AsyncConnection], Awaited],
    )
    PlainBatchHandler = TypeVar(
        "PlainBatchHandler",
        bound=Callable[[list[Message]], Returned]
        | Callable[[list[Message], Session], Returned]
        | Callable[[list[Message], Connection], Returned],
    )
    AsyncBatchHandler = TypeVar(
        "AsyncBatchHandler",
        bound=Callable[[list[Message]], Awaited]
        | Callable[[list[Message], AsyncSession], Awaited]
        | Callable[[list[Message], AsyncConnection], Awaited],
    )
    # A handler above takes every Session. One that takes only a class derived from it fits none of them.
    OwnSession = TypeVar("OwnSession", bound=Session | Connection)
    OwnAsyncSession = TypeVar("OwnAsyncSession", bound=AsyncSession | AsyncConnection)
    Body = TypeVar("Body", bound=Decoded)
    PlainReturn = TypeVar("PlainReturn", bound=Returned)
    AsyncReturn = TypeVar("AsyncReturn")
