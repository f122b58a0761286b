"""ConsumerOptions: the options of one consumer."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID

from idempotent.claims import UNBOUNDED, Failure
from idempotent.codecs import compact
from idempotent.errors import ConfigurationError
from idempotent.keys import Key
from idempotent.message import Message
from idempotent.policy import Backoff, ExceptionPolicy, OnCancel, OnExpiredLease, OnMissingKey, OnStoreError
from idempotent.processing.handler import Handler

Exceptions: TypeAlias = "type[BaseException] | tuple[type[BaseException], ...]"
KeyFunction: TypeAlias = Callable[[Message], "str | bytes | int | UUID | None"]
ExpiredLeasePolicy: TypeAlias = "OnExpiredLease | Callable[[Key], bool] | Callable[[Key], Awaitable[bool]]"


_CANCELLED: Final = Failure(
    "effect unknown: its handler was cancelled; look, then resolve the key", UNBOUNDED, fatal=True
)
MAX_DEATHS: Final = 5
"""After so many deaths in a row a message is DEAD. Sidekiq and others set a limit between 3 and 25."""


class Results(Protocol):
    """How results are stored."""

    def encode(self, value: Any, /) -> bytes:
        """What is stored of a value. Raises any exception for one that cannot be stored."""

    def decode(self, data: bytes, /) -> Any:
        """The value again. Raises any exception if it cannot be read."""


class PlainJson:
    """`store_result=True`: JSON as anybody writes it. A tuple becomes a list."""

    def encode(self, value: Any) -> bytes:
        return compact(value).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The options of `@consumer`; `Registry.consumer` documents each."""

    key: KeyFunction | None
    exceptions: ExceptionPolicy
    max_attempts: int | None
    max_deaths: int
    backoff: Backoff
    on_missing_key: OnMissingKey
    on_expired_lease: ExpiredLeasePolicy
    on_store_error: OnStoreError
    fingerprint: KeyFunction | None
    results: Results | None
    concurrency: int | None
    handler_timeout_s: float | None
    on_cancel: OnCancel

    @property
    def store_result(self) -> bool:
        """Whether what the handler returns is stored for duplicates."""
        return self.results is not None

    @property
    def cancelled(self) -> Failure | None:
        """The failure of a handler that was cancelled; None: its key is free.

        What is to finish is cancelled only by the end of its event loop. That is the death of a process to it.
        """
        if self.on_cancel is OnCancel.FINISH:
            return None if self.on_expired_lease is OnExpiredLease.RETRY else _CANCELLED
        return _CANCELLED if self.on_cancel is OnCancel.PARK else None

    @property
    def attempts_limit(self) -> int:
        """`max_attempts` as the stores take it: without a bound a number that no key reaches."""
        return UNBOUNDED if self.max_attempts is None else self.max_attempts

    @property
    def longest_backoff_s(self) -> float:
        """Seconds before the last attempt, the longest of all waits; 0: there is only one attempt."""
        return self.backoff.longest_s(self.attempts_limit - 1) if self.attempts_limit > 1 else 0.0


def check_options(handler: Handler, options: ConsumerOptions) -> None:
    """Refuse options of a plain handler that only an `async def` can obey.

    Raises:
        ConfigurationError: it has one.
    """
    if handler.is_async:
        return
    if options.handler_timeout_s is not None:
        raise ConfigurationError(
            f"handler_timeout_s cannot go with {handler.name}, a plain `def`: a thread cannot be cancelled. Remove it, "
            "and set timeouts on what the handler calls; or write an `async def`"
        )
    if options.on_cancel is OnCancel.FINISH:
        raise ConfigurationError(
            f"on_cancel='finish' cannot go with {handler.name}, a plain `def`, which no task cancels; remove it"
        )
    if inspect.iscoroutinefunction(options.on_expired_lease):
        raise ConfigurationError(
            f"on_expired_lease is an `async def`, and {handler.name} a plain `def`: write both in one kind"
        )


def exceptions(value: Exceptions, name: str) -> tuple[type[BaseException], ...]:
    """The exception classes of an option as a tuple.

    Raises:
        ConfigurationError: it is not an exception class, or a tuple of them.
    """
    classes: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise ConfigurationError(
                f"{name} takes an exception class, or a tuple of them such as (ValueError, KeyError), not {each!r}"
            )
    return classes
