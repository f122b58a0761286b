"""Decorator, BatchDecorator, ConsumerSettings: what `@consumer` takes and makes, for type checkers and editors.

At run time `idempotent.processing.handler` reads the signature of a handler, and refuses the same ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sized
from contextlib import AbstractContextManager
from enum import Enum
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    Protocol,
    SupportsFloat,
    TypeAlias,
    TypedDict,
    TypeVar,
    overload,
)

from idempotent.consumer import AnyConsumer, AsyncConsumer, Consumer
from idempotent.errors import ConfigurationError
from idempotent.message import Message
from idempotent.policy import Backoff, OnMissingKey, OnStoreError
from idempotent.processing.options import Exceptions, ExpiredLeasePolicy, KeyFunction

if TYPE_CHECKING:
    # At run time a consumer without a session does not need SQLAlchemy.
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session


class ConsumerSettings(TypedDict, total=False):
    """The options of `@consumer` that have the same type for every handler; `Registry.consumer` documents each."""

    group: str
    key: KeyFunction | None
    retry_for: Exceptions
    idempotent_for: Exceptions
    max_attempts: int
    backoff: Backoff | None
    on_missing_key: OnMissingKey | Literal["reject", "process"]
    on_expired_lease: ExpiredLeasePolicy | Literal["retry", "park"]
    on_store_error: OnStoreError | Literal["retry", "process"]
    fingerprint: KeyFunction | None
    store_result: bool
    concurrency: int | None
    handler_timeout_s: float | None


class Ordered(Protocol):
    """A number, a text, a date."""

    def __lt__(self, other: Any, /) -> bool:
        """Compare."""


class Dataclass(Protocol):
    """A dataclass, such as `Message`."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


if TYPE_CHECKING:
    Returned: TypeAlias = (
        Sized | SupportsFloat | Ordered | Dataclass | Enum | AbstractContextManager[Any, Any] | None
    )
    """What a plain handler may return.

    Types cannot say "all but coroutines and generators", so this names what is finished: texts, numbers, containers,
    dates, dataclasses, enums, results of statements. A handler that returns another class is annotated `-> Any`.
    """
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
    PlainReturn = TypeVar("PlainReturn", bound=Returned)
    AsyncReturn = TypeVar("AsyncReturn")


class Decorator(Protocol):
    """Makes a consumer of a handler that takes one message."""

    # The plain ones first: what a handler with `-> Any` returns fits both, and an `async def` fits no plain one.
    @overload
    def __call__(self, handler: PlainHandler, /) -> Consumer[PlainHandler]: ...
    @overload
    def __call__(
        self, handler: Callable[[Message, OwnSession], PlainReturn], /
    ) -> Consumer[Callable[[Message, OwnSession], PlainReturn]]: ...
    @overload
    def __call__(self, handler: AsyncHandler, /) -> AsyncConsumer[AsyncHandler]: ...
    @overload
    def __call__(
        self, handler: Callable[[Message, OwnAsyncSession], Coroutine[Any, Any, AsyncReturn]], /
    ) -> AsyncConsumer[Callable[[Message, OwnAsyncSession], Coroutine[Any, Any, AsyncReturn]]]: ...


class BatchDecorator(Protocol):
    """Makes a consumer of a handler that takes a list of messages: `batch=True`."""

    @overload
    def __call__(self, handler: PlainBatchHandler, /) -> Consumer[PlainBatchHandler]: ...
    @overload
    def __call__(
        self, handler: Callable[[list[Message], OwnSession], PlainReturn], /
    ) -> Consumer[Callable[[list[Message], OwnSession], PlainReturn]]: ...
    @overload
    def __call__(self, handler: AsyncBatchHandler, /) -> AsyncConsumer[AsyncBatchHandler]: ...
    @overload
    def __call__(
        self, handler: Callable[[list[Message], OwnAsyncSession], Coroutine[Any, Any, AsyncReturn]], /
    ) -> AsyncConsumer[Callable[[list[Message], OwnAsyncSession], Coroutine[Any, Any, AsyncReturn]]]: ...


def refuse_consumer(handled: object) -> None:
    """Refuse a consumer, or its method, as a handler: the outer one would hide the inner one's failure.

    Raises:
        ConfigurationError: it is one, perhaps within a partial or a wrapper.
    """
    inner: Any = handled
    while isinstance(inner, partial):
        inner = inner.func
    inner = inspect.unwrap(inner, stop=lambda each: isinstance(each, AnyConsumer))
    inner = getattr(inner, "__self__", inner)
    if isinstance(inner, AnyConsumer):
        raise ConfigurationError(
            f"{inner.name} is a consumer already: decorate its plain handler, {inner.handler.name}, which is its "
            "__wrapped__"
        )
