"""Consumer, AsyncConsumer: a handler decorated with `@consumer`."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial, update_wrapper
from operator import attrgetter
from pickle import PicklingError
from typing import TYPE_CHECKING, Any, Final, Generic, cast
from uuid import UUID

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.transactions import TransactionHooks
from idempotent.errors import (
    ConfigurationError,
    DeadKeyError,
    FingerprintMismatchError,
    InProgressError,
    MissingKeyError,
    ResultNotStoredError,
    StoreError,
    described,
)
from idempotent.keys import NO_KEY, Key, KeySpace, consumer_named, id_of
from idempotent.logs import EventLog
from idempotent.message import Message
from idempotent.observe.log_lines import LogThrottle
from idempotent.observe.observers import Observers
from idempotent.outcomes import Outcome, Result
from idempotent.policy import OnExpiredLease, OnStoreError
from idempotent.processing.binding import Binding
from idempotent.processing.calling import current_claim
from idempotent.processing.group import process_many
from idempotent.processing.handler import Handler
from idempotent.processing.holding import retry_after_s
from idempotent.processing.options import MAX_DEATHS, ConsumerOptions, PlainJson
from idempotent.processing.single import process_one
from idempotent.processing.steps import drive, drive_async

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # The default lets `Consumer` stand without brackets in an annotation.
    HandlerT_co = TypeVar("HandlerT_co", bound=Callable[..., Any], default=Callable[..., Any], covariant=True)
else:
    from typing import TypeVar

    HandlerT_co = TypeVar("HandlerT_co", covariant=True)

R = TypeVar("R")

__all__ = ["AnyConsumer", "AsyncConsumer", "Consumer", "current_claim"]

log = EventLog(__name__)

DISABLED_VARIABLE: Final = "IDEMPOTENT_DISABLED"
# Python 3.11 takes as long to look up an enum's member as to create a small object.
_DEAD: Final = Outcome.DEAD
_PROCESSED: Final = Outcome.PROCESSED


class AnyConsumer:
    """A handler that passes through a checker: what `Consumer` and `AsyncConsumer` have in common.

    Attributes:
        subject: the queue, destination or topic that it consumes: `queue=`, if that is given.
        group: its name among the consumers of the subject; each group processes every message once.
        name: `subject:group` as declared, as in metrics, keys and `IDEMPOTENT_DISABLED`.
    """

    def __init__(
        self,
        subject: str,
        group: str,
        handler: Handler,
        options: ConsumerOptions,
        resolve: Callable[[], AbstractIdempotentChecker],
        observers: Observers,
        queue: str | None = None,
    ) -> None:
        self.subject: Final = queue or subject
        self.group: Final = group
        self.handler: Final = handler
        self.options: Final = options
        self.observers: Final = observers
        self._resolve = resolve
        self._binding: Binding | None = None
        self._keys = KeySpace(subject, group)
        self._dead_answers = LogThrottle()
        self.name: Final = self._keys.name
        # Without the handler's own attributes, which could replace this object's.
        update_wrapper(cast("Any", self), handler.function, updated=())

    def __reduce__(self) -> str:
        """Pickle it by its import path, as a function. The process that reads it imports that module, and binds anew.

        Raises:
            PicklingError: the path does not lead to this consumer.
        """
        path = getattr(self, "__qualname__", "")  # a partial has none
        try:
            found = attrgetter(path)(sys.modules[self.__module__])
        except (AttributeError, KeyError):
            found = None
        if found is not self:
            raise PicklingError(
                f"{self.name} is pickled by its import path, and {self.handler.name} is not this consumer: write the "
                "function below @consumer at the top of a module"
            )
        return path

    @property
    def checker(self) -> AbstractIdempotentChecker:
        """The checker that it uses now, which may be an override.

        Raises:
            UnknownCheckerError: no checker of that name is registered.
            ConfigurationError: the checker does not support the consumer's options or handler.
        """
        return self.binding.checker

    @property
    def binding(self) -> Binding:
        """The consumer bound to that checker. Raises what `checker` raises."""
        checker = self._resolve()
        binding = self._binding
        if binding is None or checker is not binding.checker:
            binding = self._binding = self.bind(checker)
        return binding

    def binding_for(self, call: Callable[..., Any], session: type | None = None) -> Binding:
        """The binding with a function in the place of the handler, for one call; see `process`.

        Raises:
            ConfigurationError: the checker has no such session to give. And what `checker` raises.
        """
        binding = self.binding
        if session is not None and session is not self.handler.session_type:
            _demand_session(binding.checker, session, "call")

        def handle(_: Message, *given: Any) -> Any:
            return call(*given)

        return binding.with_handler(Handler(handle, session, batch=False, is_async=self.handler.is_async))

    def check(self) -> None:
        """Look up the checker and bind to it, as a Worker does at start. Raises what `checker` raises."""
        self._binding = self.bind(self._resolve())

    def bind(self, checker: AbstractIdempotentChecker) -> Binding:
        """Bind the consumer to a checker, and read the kill switch.

        Raises:
            ConfigurationError: the checker does not support the consumer's options or handler, or the kill switch has
                another form than it should.
        """
        self.check_options(checker)
        first = self._binding is None or self._binding.checker is not checker
        lends = isinstance(checker, TransactionHooks) and checker.lends
        if first and lends and not self.handler.session_type:
            log.warning(
                "handler_outside_transaction",
                extra={
                    "consumer": self.name,
                    "hint": "the handler takes no session, so its effect commits separately",
                },
            )
        disabled = _is_disabled(self.name)
        if disabled:
            log.warning("consumer_disabled", extra={"consumer": self.name, "variable": DISABLED_VARIABLE})
        checker.protocol.events.bind(self.name, self.observers)
        return Binding(self._keys, self.handler, self.options, checker, self.observers, disabled=disabled)

    def check_options(self, checker: AbstractIdempotentChecker) -> None:
        """Refuse a checker that does not support the consumer's options or handler, and an unknown kill switch.

        Raises:
            ConfigurationError: one of these.
        """
        _is_disabled(self.name)
        transactional = isinstance(checker, TransactionHooks)
        kind = type(checker).__name__
        if isinstance(checker, TransactionHooks) and checker.is_async is not self.handler.is_async:
            raise ConfigurationError(_wrong_engine(self.handler, checker))
        if self.handler.session_type:
            _demand_session(checker, self.handler.session_type, self.handler.name)
        if transactional and self.options.on_store_error is OnStoreError.PROCESS:
            raise ConfigurationError(
                f"{self.name}: on_store_error='process' cannot go with {kind}: without its database the "
                "handler has no transaction; remove the option"
            )
        if checker.lease_s is None and self.options.on_expired_lease is not OnExpiredLease.RETRY:
            raise ConfigurationError(
                f"{self.name}: on_expired_lease= cannot go with {kind}, whose keys have no leases that could end; "
                "remove it, or use a checker with lease_s="
            )
        if checker.lease_s is None and not transactional and self.options.max_deaths != MAX_DEATHS:
            raise ConfigurationError(
                f"{self.name}: max_deaths= cannot go with {kind} without leases: a message whose process died does not "
                "run again; remove it, or use a checker with lease_s="
            )
        longest_s = self.options.longest_backoff_s
        if longest_s >= checker.retention_s:
            raise ConfigurationError(
                f"{self.name}: a failed message may wait {longest_s:g} s for its next attempt, and {kind} forgets the "
                f"earlier ones after retention_s={checker.retention_s:g}, so they would begin again and again "
                f"(max_attempts={self.options.max_attempts}); raise retention_s, or lower the backoff's maximum_s"
            )
        for name, given in (
            ("key", self.options.key),
            ("fingerprint", self.options.fingerprint),
            (
                "store_result" if isinstance(self.options.results, PlainJson) else "codec",
                self.options.results,
            ),
        ):
            if checker.remembers.by_position and given:
                raise ConfigurationError(
                    f"{self.name}: {name}= cannot go with {kind}, which identifies a message by its offset; "
                    "remove it, or use a TransactionalSqlChecker"
                )

    def key_of(self, message_id: str | bytes | int | UUID) -> Key:
        """The key of a message id under this consumer.

        Raises:
            TypeError: the id is of another type.
        """
        return self._keys.key(id_of(message_id, "an id"))

    def key_in(self, message: Message) -> Key | None:
        """The key of a message; None: it has none, or it cannot be computed. Raises what `checker` raises."""
        key = self.binding.key_of(message)
        return None if key is NO_KEY else key

    def value_of(self, message: Message, result: Result) -> Any:
        """What the handler returned, now or before; raises what says why it has not."""
        if result.outcome is _PROCESSED:
            return result.value
        self.note_duplicate(message, result)
        if result.replayed:
            return result.value
        if result.outcome is Outcome.DUPLICATE:
            raise ResultNotStoredError(
                f"{self.key_in(message)} ran before, and its result was not stored or cannot be read; it does not run "
                "again"
            )
        raise self.error_of(message, result)

    def note_duplicate(self, message: Message, result: Result) -> None:
        """Log that a call did not run because its key is done, for who asks why nothing happened."""
        if result.outcome is Outcome.DUPLICATE and log.isEnabledFor(logging.DEBUG):
            log.debug("duplicate_dropped", extra={"consumer": self.name, "key": str(self.key_in(message))})

    def error_of(self, message: Message, result: Result) -> BaseException:
        """What says why the handler did not run, or with what it failed."""
        if result.outcome is Outcome.IN_PROGRESS:
            why = (
                result.reason
                or "another call with this key runs, or the lease of one that died has not ended"
            )
            return InProgressError(
                f"{self.key_in(message)}: {why}; call again later, with the same key",
                retry_after_s=retry_after_s(result),
            )
        if isinstance(result.error, FingerprintMismatchError):
            return FingerprintMismatchError(
                f"{self.key_in(message)} was used before with other arguments, by fingerprint=; call it with the same "
                "ones, or with a new key"
            )
        if isinstance(result.error, MissingKeyError):
            return MissingKeyError(f"{self.name}: the key is empty or None")
        return result.error or StoreError()

    def report(self, message: Message, result: Result) -> None:
        """Count the outcome of a message, and show it to the observers."""
        observers = self.observers
        observers.count(self.name, result.outcome)
        if observers.watch_results:
            observers.processed(self.name, (message,), (result,))
        if result.outcome is _DEAD:
            self._log_dead(message, result)

    def report_many(self, messages: Sequence[Message], results: Sequence[Result]) -> None:
        """Count the outcomes of messages that were processed together, and show them to the observers."""
        if len(results) == 1:
            self.report(messages[0], results[0])
            return
        for outcome, count in Counter([result.outcome for result in results]).items():
            self.observers.count(self.name, outcome, count)
        if self.observers.watch_results:
            self.observers.processed(self.name, messages, results)
        for message, result in zip(messages, results, strict=True):
            if result.outcome is _DEAD:
                self._log_dead(message, result)

    def _log_dead(self, message: Message, result: Result) -> None:
        """Log the death of a message that its caller made. That of a delivery is logged by who settles it."""
        if message.from_broker:
            return
        # A key that was dead before: somebody may ask for it a thousand times a second.
        more = self._dead_answers.take() if isinstance(result.error, DeadKeyError) else 0
        if more is not None:
            error = None if result.error is None else described(result.error)
            extra = {"attempt": result.attempt, "outcome": result.outcome.value, "error": error, "more": more}
            log.error("message_dead", extra={**self.binding.about(message), **extra})


class Consumer(AnyConsumer, Generic[HandlerT_co]):
    """A plain handler that passes through a checker. Made by `@consumer`; call it with a message.

    Attributes:
        __wrapped__: the handler, for unit tests of what it computes.
    """

    __wrapped__: HandlerT_co

    def __call__(self: Consumer[Callable[..., R]], message: Message) -> Result[R | None]:
        """Process one message. Raises what `checker` raises, and the handler's exception after its key was released."""
        return _returned(self.process(message))

    def process(
        self: Consumer[Callable[..., R]],
        message: Message,
        *,
        call: Callable[..., Any] | None = None,
        session: type | None = None,
    ) -> Result[R | None]:
        """Process one message. The handler's exception is in `Result.error`. Raises what `checker` raises.

        Args:
            message: the message.
            call: what runs in the place of the handler, without arguments.
            session: the type of the session or connection that `call` is given, such as SQLAlchemy's Session.
        """
        if not isinstance(message, Message):
            raise _no_message(message)
        binding = self.binding if call is None else self.binding_for(call, session)
        result = drive(process_one(binding, message))
        self.report(message, result)
        return result

    def process_many(self: Consumer[Callable[..., R]], messages: Iterable[Message]) -> list[Result[R | None]]:
        """Process messages together: one statement claims their keys, one completes them. Raises what `checker` raises.

        Returns the results in the order of the messages.
        """
        messages = _checked(messages)
        results = drive(process_many(self.binding, messages))
        self.report_many(messages, results)
        return results


class AsyncConsumer(AnyConsumer, Generic[HandlerT_co]):
    """An `async def` handler that passes through a checker. Made by `@consumer`; await its call with a message.

    A task that is cancelled in its handler leaves the message as if it had never been claimed, and no attempt is
    counted. One that is cancelled while the effect is recorded records it first: the message is processed, and its
    next delivery a duplicate.

    Attributes:
        __wrapped__: the handler, for unit tests of what it computes.
    """

    __wrapped__: HandlerT_co

    async def __call__(
        self: AsyncConsumer[Callable[..., Awaitable[R]]], message: Message
    ) -> Result[R | None]:
        """Process one message. Raises what `checker` raises, and the handler's exception after its key was released."""
        return _returned(await self.process(message))

    async def process(
        self: AsyncConsumer[Callable[..., Awaitable[R]]],
        message: Message,
        *,
        call: Callable[..., Awaitable[Any]] | None = None,
        session: type | None = None,
    ) -> Result[R | None]:
        """Process one message. The handler's exception is in `Result.error`. Raises what `checker` raises.

        Args:
            message: the message.
            call: an `async def` that runs in the place of the handler, without arguments.
            session: the type of the session or connection that `call` is given, such as SQLAlchemy's AsyncSession.
        """
        if not isinstance(message, Message):
            raise _no_message(message)
        binding = self.binding if call is None else self.binding_for(call, session)
        return await drive_async(
            process_one(binding, message),
            binding.checker.awaiting,
            partial(self.report, message),
        )

    async def process_many(
        self: AsyncConsumer[Callable[..., Awaitable[R]]], messages: Iterable[Message]
    ) -> list[Result[R | None]]:
        """Process messages together: one statement claims their keys, one completes them. Raises what `checker` raises.

        The handlers run one after the other. Returns the results in the order of the messages.
        """
        messages = _checked(messages)
        binding = self.binding
        return await drive_async(
            process_many(binding, messages),
            binding.checker.awaiting,
            partial(self.report_many, messages),
        )


def _demand_session(checker: AbstractIdempotentChecker, session: type, who: str) -> None:
    """Refuse a checker that has no such session to give."""
    if not isinstance(checker, TransactionHooks):
        raise ConfigurationError(
            f"{who} takes {session.__name__} objects, but {type(checker).__name__} has no "
            "transaction to share; use a TransactionalSqlChecker, or remove the parameter"
        )
    checker.check_argument(session)


def _wrong_engine(handler: Handler, checker: TransactionHooks) -> str:
    kind = type(checker).__name__
    if handler.is_async:
        return f"{handler.name} is an `async def`, but the {kind} {checker.no_async}"
    return (
        f"{handler.name} is a plain `def`, but the {kind} has an AsyncEngine: give it create_engine(...), or write an "
        "`async def`"
    )


def _is_disabled(name: str) -> bool:
    words = [word.strip() for word in os.environ.get(DISABLED_VARIABLE, "").split(",")]
    for word in filter(None, words):
        # Read by a person in a hurry: a word without effect must not look like one.
        if word.lower() == "all":
            return True
        named = consumer_named(word)
        if named is None:
            raise ConfigurationError(
                f"{DISABLED_VARIABLE}={word!r} is not understood: write all, or names of consumers as subject:group, "
                "separated by commas"
            )
        if named == name:
            return True
    return False


def _returned(result: Result[R]) -> Result[R]:
    """The result; if its handler failed, raise the handler's exception."""
    if result.is_handler_error and result.error is not None:
        raise result.error
    return result


def _checked(messages: Iterable[Message]) -> Sequence[Message]:
    messages = list(messages)
    for message in messages:
        if not isinstance(message, Message):
            raise _no_message(message)
    return messages


def _no_message(given: object) -> TypeError:
    return TypeError(
        f"a consumer takes Messages, not {type(given).__name__}: write Message(subject, body, id=...)"
    )
