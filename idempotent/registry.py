"""Registry: a set of consumers and their checkers. `consumer` is the decorator of a default one."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    Protocol,
    TypedDict,
    Unpack,
    cast,
    overload,
)

from idempotent.admin import OWN
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.claims import UNBOUNDED
from idempotent.codecs import Codec, Framed
from idempotent.consumer import AnyConsumer, AsyncConsumer, Consumer
from idempotent.errors import ConfigurationError, UnknownCheckerError
from idempotent.forks import free_in_child
from idempotent.message import Message
from idempotent.observe.counting import counters
from idempotent.observe.observers import Observer, Observers
from idempotent.policy import Backoff, ExceptionPolicy, OnCancel, OnExpiredLease, OnMissingKey, OnStoreError
from idempotent.processing.handler import Handler, handler_of
from idempotent.processing.options import (
    MAX_DEATHS,
    ConsumerOptions,
    Exceptions,
    ExpiredLeasePolicy,
    KeyFunction,
    PlainJson,
    check_options,
    exceptions,
)
from idempotent.validation import choice, flag, function, seconds_or_none, text, whole

if TYPE_CHECKING:
    from idempotent.processing.signatures import (
        AsyncBatchHandler,
        AsyncHandler,
        AsyncReturn,
        Body,
        OwnAsyncSession,
        OwnSession,
        PlainBatchHandler,
        PlainHandler,
        PlainReturn,
    )


class Registry:
    """A set of consumers and the checkers they use. `idempotent.consumer` belongs to a default one.

    Args:
        observers: observe the messages of these consumers; the default counts in `idempotent.observe.counters`.

    Attributes:
        observers: the registry's observers; `registry.observers.add(observer)` adds one.
    """

    def __init__(self, observers: Iterable[Observer] = (counters,)) -> None:
        self.observers: Final = Observers(observers)
        self._consumers: dict[str, AnyConsumer] = {}
        self._checkers: dict[str, AbstractIdempotentChecker] = {}
        self._overrides: dict[str, AbstractIdempotentChecker] = {}
        self._from_urls: dict[str, AbstractIdempotentChecker] = {}
        self._lock = free_in_child(threading.Lock())

    @property
    def consumers(self) -> Mapping[str, AnyConsumer]:
        """The consumers by name, `subject:group`."""
        return MappingProxyType(self._consumers)

    @property
    def checkers(self) -> Mapping[str, AbstractIdempotentChecker]:
        """The named checkers, overrides included."""
        return MappingProxyType({**self._checkers, **self._overrides})

    def checker(self, name: str, checker: AbstractIdempotentChecker | str) -> AbstractIdempotentChecker:
        """Register a checker under a name that consumers can use. It replaces an earlier one of that name.

        Args:
            name: the name.
            checker: an instance, or a URL (see `checker_from_url`).

        Raises:
            ConfigurationError: the name looks like a URL, or the URL is invalid, or the object is not a checker.
        """
        if "://" in text(name, "name"):
            raise ConfigurationError(f"{name!r} is a URL; give the checker a short name")
        made = _checker(checker)
        if isinstance(made, str):
            made = _from_url(made)
        self._checkers[name] = made
        return made

    def resolve(self, checker: AbstractIdempotentChecker | str) -> AbstractIdempotentChecker:
        """The checker that consumers use now for this one, or this name or URL: it may be an override.

        Raises:
            UnknownCheckerError: no checker of that name is registered.
            ConfigurationError: the URL is invalid.
        """
        if isinstance(checker, AbstractIdempotentChecker):
            return checker
        found = self._overrides.get(checker) or self._checkers.get(checker) or self._from_urls.get(checker)
        if found is not None:
            return found
        if "://" in checker:
            with self._lock:  # threads that ask at once get one checker
                if checker not in self._from_urls:
                    self._from_urls[checker] = _from_url(checker)
                return self._from_urls[checker]
        known = ", ".join(sorted(self.checkers)) or "none"
        if "@" in checker:
            raise UnknownCheckerError(
                "the checker is no registered name, and as a URL it lacks '://'. It is not shown, because it may "
                f"contain a password. Known names: {known}"
            )
        raise UnknownCheckerError(
            f"no checker is named {checker!r}; known: {known}. "
            f"Register it: registry.checker({checker!r}, SqlChecker(...))",
            checker,
        )

    def override(self, name: str, checker: AbstractIdempotentChecker) -> AbstractContextManager[None]:
        """Use another checker under a name from now on; leaving the returned context undoes that. For tests.

        Raises:
            ConfigurationError: the object is not a checker.
        """
        if not isinstance(_checker(checker), AbstractIdempotentChecker):
            raise ConfigurationError(
                "override() takes a checker, such as MemoryChecker(), not its name or URL"
            )
        before = self._overrides.get(name)
        self._overrides[name] = checker

        @contextlib.contextmanager
        def restoring() -> Iterator[None]:
            try:
                yield
            finally:
                if before is None:
                    self._overrides.pop(name, None)
                else:
                    self._overrides[name] = before

        return restoring()

    @overload
    def consumer(
        self,
        subject: str,
        *,
        checker: AbstractIdempotentChecker | str,
        batch: Literal[False] = False,
        **options: Unpack[ConsumerSettings],
    ) -> Decorator: ...
    @overload
    def consumer(
        self,
        subject: str,
        *,
        checker: AbstractIdempotentChecker | str,
        batch: Literal[True],
        **options: Unpack[ConsumerSettings],
    ) -> BatchDecorator: ...
    def consumer(
        self,
        subject: str,
        *,
        checker: AbstractIdempotentChecker | str,
        group: str = "default",
        key: KeyFunction | None = None,
        retry_for: Exceptions = (Exception,),
        idempotent_for: Exceptions = (),
        dead_for: Exceptions = (),
        max_attempts: int | None = 5,
        max_deaths: int = MAX_DEATHS,
        backoff: Backoff | None = None,
        on_missing_key: OnMissingKey | Literal["reject", "process"] = OnMissingKey.REJECT,
        on_expired_lease: ExpiredLeasePolicy | Literal["retry", "park"] = OnExpiredLease.RETRY,
        on_store_error: OnStoreError | Literal["retry", "process"] = OnStoreError.RETRY,
        fingerprint: KeyFunction | None = None,
        store_result: bool = False,
        batch: bool = False,
        concurrency: int | None = None,
        handler_timeout_s: float | None = None,
        on_cancel: OnCancel | Literal["retry", "park", "finish"] = OnCancel.RETRY,
        codec: Codec | None = None,
        queue: str | None = None,
        registered: bool = True,
    ) -> Decorator | BatchDecorator:
        """Decorate a handler `(message)` or `(message, session)` so that its effect happens once.

        A first parameter that is annotated with a dataclass, a pydantic model or a msgspec Struct takes the decoded
        body instead; then `(body, message)` and `(body, message, session)` are handlers too.
        A plain function becomes a `Consumer`, an `async def` an `AsyncConsumer`.

        Args:
            subject: queue, destination or topic; part of the key.
            checker: an instance, a URL, or the name of a registered checker.
            group: name of the consumer among those of the subject; part of the key.
            key: returns what identifies a message, as str, bytes, int or UUID; default: the message id. A LookupError,
                None or an empty text means that the message has no key.
            retry_for: exceptions after which the message is redelivered.
            idempotent_for: exceptions that count as processed; they win over the other lists.
            dead_for: exceptions that make the message dead at once; they win over `retry_for`. So does an exception in
                none of the lists, and a `MessageError`, such as that of `Message.json()`.
            max_attempts: real executions that may fail before the message is dead; None: without a bound, for
                callers that decide themselves when to stop.
            max_deaths: processes in a row that may die while they run the message before it is dead. From the second
                death on it takes turns with other such messages of its process.
            backoff: delays between attempts. The checker's `retention_s` must be longer than each of them: it forgets
                earlier attempts then.
            on_missing_key: `reject`, or `process` without protection.
            on_expired_lease: `retry`, `park` (the key is dead until a person decides) or a callable that takes the
                key and returns whether its effect happened: everything that the handler does.
            on_store_error: `retry`, or `process` without protection (never with a transactional checker).
            fingerprint: returns what must be equal in all deliveries of a key, as str or bytes; a delivery that
                differs is rejected.
            store_result: store what the handler returns, as JSON, and return it for duplicates.
            batch: the handler takes a list of messages, all or nothing; a failed batch is tried one by one.
            concurrency: how many of its messages (or batches) a worker runs at once; None: as many as the worker
                runs. A slow consumer with a limit leaves threads to the others.
            handler_timeout_s: seconds after which an `async def` handler is cancelled and has failed with a
                TimeoutError; None: never.
            on_cancel: what the cancellation of a handler means for an effect that it has begun: `retry` frees the key,
                `park` makes it dead until a person decides, `finish` lets an `async def` handler run to its end.
            codec: stores what the handler returns in a form of your own, and returns it for duplicates; see
                `idempotent.codecs`.
            queue: the queue, destination or topic to consume, if it has another name than the subject by now: who
                renames one keeps the subject, and so the keys.
            registered: False: no worker consumes for it, only your calls do, and its name may be used again.

        Raises:
            ConfigurationError: invalid or contradictory options, or a handler with other parameters.
        """
        if text(subject, "subject") == OWN:
            raise ConfigurationError(f"no consumer has the subject {OWN!r}: its keys are the library's own")
        text(group, "group")
        if queue is not None:
            text(queue, "queue")
        named = _checker(checker)
        expired = (
            function(on_expired_lease, "on_expired_lease", "lambda key: effect_happened(key)", may_wait=True)
            if callable(on_expired_lease)
            else choice(OnExpiredLease, on_expired_lease, "on_expired_lease", ", or a callable")
        )
        if backoff is not None and not isinstance(backoff, Backoff):
            raise ConfigurationError(
                f"backoff must be a Backoff, such as Backoff(initial_s=5), not {backoff!r}"
            )
        if flag(batch, "batch") and expired is not OnExpiredLease.RETRY:
            raise ConfigurationError(
                "on_expired_lease other than 'retry' cannot go with batch=True: when a process dies, it is unknown "
                "which messages of its batch ran"
            )
        if (flag(store_result, "store_result") or codec is not None) and batch:
            raise ConfigurationError(
                "store_result and codec cannot go with batch=True: a batch returns no result per message"
            )
        cancelled = choice(OnCancel, on_cancel, "on_cancel")
        if batch and cancelled is OnCancel.PARK:
            raise ConfigurationError(
                "on_cancel='park' cannot go with batch=True: it is unknown which messages of the batch ran"
            )
        options = ConsumerOptions(
            key=None
            if key is None
            else function(key, "key", "lambda message: message.headers['payment-id']"),
            exceptions=ExceptionPolicy(
                exceptions(retry_for, "retry_for"),
                exceptions(idempotent_for, "idempotent_for"),
                exceptions(dead_for, "dead_for"),
            ),
            max_attempts=None
            if max_attempts is None
            else whole(max_attempts, "max_attempts", most=UNBOUNDED, more="; None for no bound"),
            max_deaths=whole(max_deaths, "max_deaths", most=UNBOUNDED),
            backoff=backoff or Backoff(),
            on_missing_key=choice(OnMissingKey, on_missing_key, "on_missing_key"),
            on_expired_lease=expired,
            on_store_error=choice(OnStoreError, on_store_error, "on_store_error"),
            fingerprint=None
            if fingerprint is None
            else function(fingerprint, "fingerprint", "lambda message: message.body"),
            results=PlainJson() if store_result and codec is None else codec and Framed(codec),
            concurrency=None if concurrency is None else whole(concurrency, "concurrency"),
            handler_timeout_s=seconds_or_none(handler_timeout_s, "handler_timeout_s"),
            on_cancel=cancelled,
        )
        flag(registered, "registered")

        # An instance cannot be overridden; a name is looked up at every message.
        resolve = (
            (lambda: named) if isinstance(named, AbstractIdempotentChecker) else partial(self.resolve, named)
        )

        def decorate(handled: Callable[..., Any] | Handler) -> AnyConsumer:
            _refuse_consumer(handled)
            handler = handled if isinstance(handled, Handler) else handler_of(handled, batch=batch)
            check_options(handler, options)
            made = (AsyncConsumer if handler.is_async else Consumer)(
                subject, group, handler, options, resolve, self.observers, queue
            )
            if registered and made.name in self._consumers:
                raise ConfigurationError(
                    f"{made.name} has a consumer already, {self._consumers[made.name].handler.name}; give this one "
                    "another group"
                )
            if isinstance(named, AbstractIdempotentChecker) or "://" in named:
                made.check_options(self.resolve(named))
            if registered:
                self._consumers[made.name] = made
            self.observers.declared(made.name)
            return made

        return cast("Decorator | BatchDecorator", decorate)

    def check(self) -> None:
        """Check every consumer against its checker, as a Worker does at start.

        Raises:
            UnknownCheckerError: a consumer names a checker that is not registered.
            ConfigurationError: a checker does not support its consumer's options or handler.
        """
        for made in self._consumers.values():
            made.check()

    def close(self) -> None:
        """Close every checker of this registry, also if one of them raises an error."""
        with contextlib.ExitStack() as closing:
            for checker in {*self._checkers.values(), *self._overrides.values(), *self._from_urls.values()}:
                closing.callback(checker.close)


def _from_url(url: str) -> AbstractIdempotentChecker:
    from idempotent.checkers import checker_from_url

    return checker_from_url(url)


def _checker(given: object) -> AbstractIdempotentChecker | str:
    """A checker, or the name or URL of one.

    Raises:
        ConfigurationError: another object.
    """
    if isinstance(given, AbstractIdempotentChecker):
        return given
    if isinstance(given, str):
        return text(given, "checker")
    if isinstance(given, type):
        raise ConfigurationError(f"checker={given.__name__} is a class: write {given.__name__}(...)")
    raise ConfigurationError(
        "a checker is an instance, such as MemoryChecker(), a registered name, or a URL, not of type "
        f"{type(given).__name__}"
    )


def _refuse_consumer(handled: object) -> None:
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


class ConsumerSettings(TypedDict, total=False):
    """The options of `@consumer` that have the same type for every handler; `Registry.consumer` documents each."""

    group: str
    key: KeyFunction | None
    retry_for: Exceptions
    idempotent_for: Exceptions
    dead_for: Exceptions
    max_attempts: int | None
    max_deaths: int
    backoff: Backoff | None
    on_missing_key: OnMissingKey | Literal["reject", "process"]
    on_expired_lease: ExpiredLeasePolicy | Literal["retry", "park"]
    on_store_error: OnStoreError | Literal["retry", "process"]
    fingerprint: KeyFunction | None
    store_result: bool
    concurrency: int | None
    handler_timeout_s: float | None
    on_cancel: OnCancel | Literal["retry", "park", "finish"]
    codec: Codec | None
    queue: str | None
    registered: bool


class Decorator(Protocol):
    """Makes a consumer of a handler that takes one message, or its body.

    For type checkers and editors; `idempotent.processing.handler` refuses the same handlers at run time.
    """

    # A Message is a dataclass, so each form for a body holds for a message too.
    # The plain ones first: what a handler with `-> Any` returns fits both, and an `async def` fits no plain one.
    @overload
    def __call__(self, handler: PlainHandler, /) -> Consumer[PlainHandler]: ...
    @overload
    def __call__(
        self, handler: Callable[[Body], PlainReturn], /
    ) -> Consumer[Callable[[Body], PlainReturn]]: ...
    @overload
    def __call__(
        self, handler: Callable[[Body, Message], PlainReturn], /
    ) -> Consumer[Callable[[Body, Message], PlainReturn]]: ...
    @overload
    def __call__(
        self, handler: Callable[[Body, OwnSession], PlainReturn], /
    ) -> Consumer[Callable[[Body, OwnSession], PlainReturn]]: ...
    @overload
    def __call__(
        self, handler: Callable[[Body, Message, OwnSession], PlainReturn], /
    ) -> Consumer[Callable[[Body, Message, OwnSession], PlainReturn]]: ...
    @overload
    def __call__(self, handler: AsyncHandler, /) -> AsyncConsumer[AsyncHandler]: ...
    @overload
    def __call__(
        self, handler: Callable[[Body], Coroutine[Any, Any, AsyncReturn]], /
    ) -> AsyncConsumer[Callable[[Body], Coroutine[Any, Any, AsyncReturn]]]: ...
    @overload
    def __call__(
        self, handler: Callable[[Body, Message], Coroutine[Any, Any, AsyncReturn]], /
    ) -> AsyncConsumer[Callable[[Body, Message], Coroutine[Any, Any, AsyncReturn]]]: ...
    @overload
    def __call__(
        self, handler: Callable[[Body, OwnAsyncSession], Coroutine[Any, Any, AsyncReturn]], /
    ) -> AsyncConsumer[Callable[[Body, OwnAsyncSession], Coroutine[Any, Any, AsyncReturn]]]: ...
    @overload
    def __call__(
        self, handler: Callable[[Body, Message, OwnAsyncSession], Coroutine[Any, Any, AsyncReturn]], /
    ) -> AsyncConsumer[Callable[[Body, Message, OwnAsyncSession], Coroutine[Any, Any, AsyncReturn]]]: ...


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


default_registry: Final = Registry()
consumer: Final = default_registry.consumer
