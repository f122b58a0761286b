"""How a consumer handles exceptions, lapsed leases, missing keys and an unavailable store."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from idempotent.errors import (
    ConfigurationError,
    HandlerCancelledError,
    HandlerTimeoutError,
    MessageError,
    OutboxError,
    TransactionEscapedError,
    UnfitBodyError,
)
from idempotent.validation import fraction, number, seconds


class OnMissingKey(Enum):
    """What to do with a message without a key."""

    REJECT = "reject"
    PROCESS = "process"


class OnStoreError(Enum):
    """What to do when the store does not answer a claim."""

    RETRY = "retry"
    PROCESS = "process"


class OnExpiredLease(Enum):
    """What to do with a key whose owner's lease ended without a completion or a release."""

    RETRY = "retry"
    PARK = "park"


class OnCancel(Enum):
    """What the cancellation of a handler means for an effect that it has begun."""

    RETRY = "retry"
    """The key is free: the next delivery runs the handler again."""
    PARK = "park"
    """The key is DEAD, "effect unknown", until a person decides."""
    FINISH = "finish"
    """The handler runs to its end and is recorded; then its task is cancelled."""


class Handling(Enum):
    """What an exception from a handler means."""

    IGNORE = "ignore"
    RETRY = "retry"
    WAIT = "wait"
    """No fault of the message: it is tried again until it succeeds."""
    REJECT = "reject"
    """The handler did not run, because its message can never be given to it: no attempt."""
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff: the delays between attempts.

    Args:
        initial_s: seconds before the second attempt.
        maximum_s: the longest delay, in seconds.
        multiplier: growth from one delay to the next.
        jitter: each delay is shortened at random by up to this fraction of it, from 0 (exactly as written) to 1
            (anything down to no delay). It spreads messages that failed together.

    Raises:
        ConfigurationError: a duration is negative or not finite, the maximum below the initial, the multiplier below 1,
            or the jitter not between 0 and 1.
    """

    initial_s: float = 1.0
    maximum_s: float = 300.0
    multiplier: float = 2.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if seconds(self.initial_s, "initial_s", zero=True) > seconds(self.maximum_s, "maximum_s", zero=True):
            raise ConfigurationError(f"Backoff needs 0 <= initial_s <= maximum_s, not {self}")
        number(self.multiplier, "multiplier", least=1)
        fraction(self.jitter, "jitter")

    def delay_s(self, attempts: int) -> float:
        """Seconds to wait after this many failed attempts; with a jitter, each call draws another number."""
        return self.longest_s(attempts) * self.draw()

    def draw(self) -> float:
        """A share of the longest delay, drawn at random: 1 without jitter."""
        return 1.0 - self.jitter * random.random() if self.jitter else 1.0

    def longest_s(self, attempts: int) -> float:
        """The delay after this many failed attempts, in seconds, before jitter shortens it."""
        # The limit on the exponent prevents a float overflow after thousands of attempts.
        exponent = min(max(attempts - 1, 0), 64)
        return min(self.initial_s * self.multiplier**exponent, self.maximum_s)


@dataclass(frozen=True, slots=True)
class ExceptionPolicy:
    """Which exceptions are harmless, final, or retried. All others make the message dead.

    Each tuple is matched against the exception and every exception it was raised `from`, so a wrapped exception is
    found. `idempotent_for` wins, then `dead_for`. An exception group is harmless only if every member is; it is final,
    or retried, if at least one member is. A `MessageError`, such as that of `Message.json()`, is never retried: the
    message stays as it is. The end of a handler's time, or of a task that it awaited, is always retried: no application
    raised it. An `OutboxError`, such as that of an outbox without its tables, is retried without counting an attempt. A
    `UnfitBodyError` rejects the message, unless it is in `idempotent_for`. A
    `TransactionEscapedError` is never harmless, whatever `idempotent_for` has: the effect is lost, or unknown.
    """

    retry_for: tuple[type[BaseException], ...] = (Exception,)
    idempotent_for: tuple[type[BaseException], ...] = ()
    dead_for: tuple[type[BaseException], ...] = ()

    def classify(self, error: BaseException) -> Handling:
        """What the exception means to this consumer."""
        has_escaped = _matches(error, (TransactionEscapedError,), any)
        if not has_escaped and _matches(error, self.idempotent_for, all):
            return Handling.IGNORE
        if isinstance(error, OutboxError):
            return Handling.WAIT
        if isinstance(error, UnfitBodyError):
            return Handling.REJECT
        if isinstance(error, (HandlerTimeoutError, HandlerCancelledError)):
            return Handling.RETRY
        if _matches(error, self.dead_for, any):
            return Handling.DEAD
        if _matches(error, self.retry_for, any) and not _matches(error, (MessageError,), all):
            return Handling.RETRY
        return Handling.DEAD


def _matches(
    error: BaseException, kinds: tuple[type[BaseException], ...], members: Callable[[Iterable[bool]], bool]
) -> bool:
    """Whether the exception, one of its causes, or `members` (any, all) of a group is of these kinds."""
    # With a stack of its own: an application may nest groups deeper than Python's stack, or in a cycle.
    matched: dict[int, bool] = {}
    waiting = [error]
    while waiting:
        current = waiting[-1]
        links = list(causes(current))
        groups = [link.exceptions for link in links if isinstance(link, BaseExceptionGroup)]
        found = any(isinstance(link, kinds) for link in links)
        inner = [member for group in groups for member in group if id(member) not in matched]
        matched[id(current)] = found or any(
            members(matched.get(id(member), False) for member in group) for group in groups
        )
        if inner and not found:
            waiting += inner
        else:
            waiting.pop()
    return matched[id(error)]


def causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and its `__cause__` chain, which may contain a cycle."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__
