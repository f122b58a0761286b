"""`@idempotent` and `once`: protect any function, or a block of code, where no broker delivers a message."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import update_wrapper
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeAlias, TypeVar, cast
from uuid import UUID

from idempotent.block import Once
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.codecs import Codec, JsonCodec, codec_for
from idempotent.consumer import AnyConsumer
from idempotent.errors import ConfigurationError, DoomedTransactionError
from idempotent.keys import id_of
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.policy import OnCancel, OnExpiredLease
from idempotent.processing.binding import Binding
from idempotent.processing.flights import Flight, Flights, Landing
from idempotent.processing.handler import Handler, function_of
from idempotent.processing.holding import LOOK_S, pauses
from idempotent.processing.options import Exceptions, ExpiredLeasePolicy
from idempotent.processing.single import process_one
from idempotent.processing.steps import RUN, SLEEP, Life, drive, drive_async
from idempotent.registry import default_registry
from idempotent.validation import seconds

F = TypeVar("F", bound=Callable[..., Any])
Id: TypeAlias = "str | bytes | int | UUID"


def idempotent(
    checker: AbstractIdempotentChecker | str,
    *,
    group: str,
    key: str | Callable[..., Id | None],
    name: str | None = None,
    fingerprint: Callable[..., Id | None] | None = None,
    codec: Codec | None = None,
    wait_s: float = 0.0,
    max_attempts: int | None = None,
    dead_for: Exceptions = (),
    on_expired_lease: ExpiredLeasePolicy | Literal["retry", "park"] = OnExpiredLease.RETRY,
    on_cancel: OnCancel | Literal["retry", "park", "finish"] = OnCancel.RETRY,
) -> Callable[[F], F]:
    """Let a function, or an `async def`, run once for each key: later calls return the result of the first.

    The function keeps its name, docstring, signature and types. With a `TransactionalSqlChecker`, a parameter that is
    annotated with an SQLAlchemy Session or Connection (of an `async def` AsyncSession or AsyncConnection) is given that
    of the transaction which holds the key; who calls the function leaves it out.

    A call raises the exceptions of the function unchanged, and the key is free again. It also raises:

    - `InProgressError`: another call with this key is running, here or in another process; call again later.
    - `ResultNotStoredError`: the function ran before, and its result is not stored or cannot be read.
    - `FingerprintMismatchError`: the key was used with other arguments.
    - `DeadKeyError`: the key is dead (`dead_for`, `max_attempts`, `on_expired_lease="park"`); a person decides.
    - `MissingKeyError`: the key is empty or None.
    - `StoreError`: the store did not answer. Whether the function ran is recorded or unknown: call again with the same
      key.

    Args:
        checker: an instance, a URL, or the name of a checker of the default registry.
        group: who uses the keys, such as the service. Part of the key, as in `@consumer`.
        key: the name of an argument, or a function that is called with the same arguments and returns what identifies
            the call, as str, bytes, int or UUID.
        name: part of the key; default: the function's module and name. Give one: a function that moves to another
            module forgets its keys otherwise.
        fingerprint: called with the same arguments; returns what must be equal in all calls with a key, such as
            `idempotent.keys.canonical_json`.
        codec: stores the result; default: by the function's return annotation, see `idempotent.codecs`.
        wait_s: seconds that a call waits for another one with its key, before it raises `InProgressError`; at least a
            quarter of one, as the other may only look at a key that is done.
        max_attempts: failed calls after which the key is dead; None: its callers decide.
        dead_for: exceptions after which the key is dead at once.
        on_expired_lease: what to do if the process died in the function, with a checker whose effects do not commit
            with the key: see `@consumer`.
        on_cancel: what a cancellation in the function means: see `@consumer`.

    Raises:
        ConfigurationError: invalid options; a function whose annotated result no codec can store; an argument that the
            function does not have; a session without a transactional checker.
    """
    longest_s = seconds(wait_s, "wait_s", zero=True)

    def decorate(function: F) -> F:
        handler, session = function_of(function)
        signature = inspect.signature(function)
        consumer = default_registry.consumer(
            name or _name_of(handler),
            checker=checker,
            group=group,
            codec=codec or codec_for(function),
            fingerprint=None if fingerprint is None else body_of,
            max_attempts=max_attempts,
            dead_for=dead_for,
            on_expired_lease=on_expired_lease,
            on_cancel=on_cancel,
            registered=False,
        )(cast("Any", _handler_of_calls(handler, session)))
        calls = _Calls(consumer, key_of(key, signature, session), fingerprint, longest_s)
        kept: Any = _awaitable(calls) if handler.is_async else _plain(calls)
        update_wrapper(kept, function)
        if session is not None:
            shown = _readable(function)
            parameters = [each for each in shown.parameters.values() if each.name != session]
            kept.__signature__ = shown.replace(parameters=parameters)
            kept.__annotations__ = {
                each: kind for each, kind in function.__annotations__.items() if each != session
            }
        return kept  # type: ignore[no-any-return]

    return decorate


class _Call(Message):
    """The message that stands for a call of a protected function.

    Attributes:
        args: the arguments of the call.
        kwargs: those by name.
    """

    __slots__ = ("args", "kwargs")
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


_ARGS, _KWARGS = (_Call.__dict__[name].__set__ for name in _Call.__slots__)


def _handler_of_calls(handler: Handler, session: str | None) -> Handler:
    """The handler of the messages that stand for calls.

    Args:
        handler: the function.
        session: its parameter for the session of the transaction; None: it has none.
    """
    function = handler.function

    def handle(call: _Call) -> Any:
        return function(*call.args, **call.kwargs)

    def handle_in_session(call: _Call, given: Any) -> Any:
        return function(*call.args, **call.kwargs, **{cast("str", session): given})

    handling: Callable[..., Any] = handle if session is None else handle_in_session
    return replace(handler, function=update_wrapper(handling, handler.code, updated=()))


class _Calls:
    """Makes the messages that stand for the calls of a protected function, and their lives.

    Args:
        consumer: processes them.
        key: what identifies a call.
        fingerprint: what must be equal in all calls with one key; None: anything.
        wait_s: seconds that a call waits for another one with its key.
    """

    def __init__(
        self,
        consumer: AnyConsumer,
        key: Callable[..., Id | None],
        fingerprint: Callable[..., Id | None] | None,
        wait_s: float,
    ) -> None:
        self.consumer: Final = consumer
        self._key = key
        self._fingerprint = fingerprint
        self._wait_s = wait_s
        self._flights: Final = Flights()
        self._landed: Callable[..., Any] = _landed if consumer.handler.is_async else Future.result

    def message(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Message:
        """The message that stands for a call."""
        content = None if self._fingerprint is None else self._fingerprint(*args, **kwargs)
        key = self._key(*args, **kwargs)
        if key is not None and not isinstance(key, str):
            key = id_of(key, f"what key= of {self.consumer.name} returns")
        call = _Call(self.consumer.subject, bytes_of(content), id=key)
        _ARGS(call, args)  # a message is immutable
        _KWARGS(call, kwargs)
        return call

    def life(self, binding: Binding, message: Message) -> Life[Result]:
        """What becomes of a call: it asks the store, or waits for another call of this process that does."""
        until = time.monotonic() + max(self._wait_s, LOOK_S)
        mine = Flight(message)
        result: Result | None = None
        waits: Iterator[float] | None = None
        try:
            while (other := self._flights.begin(mine)) is not mine:
                shared = yield from self._shared(other, binding, message, until)
                if shared is not None:
                    return self._counted(message, shared)
            while True:
                result = self._counted(message, (yield from process_one(binding, message)))
                if result.outcome is not Outcome.IN_PROGRESS:
                    return result
                waits = waits or pauses(until - time.monotonic())
                pause_s = next(waits, None)
                if pause_s is None:
                    return result
                yield SLEEP, time.sleep, (pause_s,)
        finally:
            awaited = self._flights.land(mine)
            if awaited is not None:
                self._hand_on(awaited, message, result)

    def _shared(self, other: Flight, binding: Binding, message: Message, until: float) -> Life[Result | None]:
        """What becomes of a call by another one with its key, which it waits for; None: it has to ask the store."""
        landing = other.awaited()
        if landing is None:
            return None
        try:
            stored = yield RUN, self._landed, (landing, max(until - time.monotonic(), 0))
        except TimeoutError:
            return _RUNNING
        if stored is None or other.message.body != message.body:
            return None
        value, replayed = binding.decode(stored, message)
        return Result(Outcome.DUPLICATE, value=value, replayed=replayed)

    def _counted(self, message: Message, result: Result) -> Result:
        """The result; a call that has waited for another one, instead of asking the store, is counted all the same."""
        self.consumer.report(message, result)
        return result

    def _hand_on(self, landing: Landing, message: Message, result: Result | None) -> None:
        """Give the stored result of a call to the others with its key.

        Args:
            landing: what they wait for.
            message: the call.
            result: what came of it; None: an exception.
        """
        stored = None
        try:
            if result is not None and (result.outcome is Outcome.PROCESSED or result.replayed):
                # Stored, because each of them is given an object of its own.
                stored = self.consumer.binding.encode(result.value, message)
        finally:
            landing.set_result(stored)


_RUNNING: Final = Result(Outcome.IN_PROGRESS)


async def _landed(landing: Landing, wait_s: float) -> bytes | None:
    """`Future.result` for a task."""
    async with asyncio.timeout(
        wait_s
    ):  # wait_for of Python 3.11 loses a cancellation that comes with the result
        return await asyncio.wrap_future(landing)


def _plain(calls: _Calls) -> Callable[..., Any]:
    consumer = calls.consumer

    def call(*args: Any, **kwargs: Any) -> Any:
        message = calls.message(args, kwargs)
        return consumer.value_of(message, drive(calls.life(consumer.binding, message)))

    return call


def _awaitable(calls: _Calls) -> Callable[..., Any]:
    consumer = calls.consumer

    async def call(*args: Any, **kwargs: Any) -> Any:
        message = calls.message(args, kwargs)
        binding = consumer.binding
        result = await drive_async(calls.life(binding, message), binding.checker.awaiting)
        return consumer.value_of(message, result)

    return call


def _name_of(handler: Handler) -> str:
    if handler.code.__name__ == "<lambda>":
        raise ConfigurationError(
            f"{handler.name} is the name of every lambda beside it, which would share their keys: give name="
        )
    module, _, rest = handler.name.partition("__main__.")
    if module:
        return handler.name
    # The same program may be imported elsewhere, such as by its worker.
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return f"{spec.name if spec else Path(file).stem if file else '__main__'}.{rest}"


def _readable(function: Callable[..., Any]) -> inspect.Signature:
    """A signature with the types themselves: who reads one that was set cannot look up the names of types in it."""
    try:
        return inspect.signature(function, eval_str=True)
    except Exception:  # a name is only for type checkers, or a text is no type
        return inspect.signature(function)


def key_of(
    key: str | Callable[..., Id | None], signature: inspect.Signature, session: str | None
) -> Callable[..., Id | None]:
    """A function that takes the arguments of a call and returns its key."""
    if callable(key):
        return key
    parameter = signature.parameters.get(key)
    if (
        parameter is None
        or key == session
        or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ):
        raise ConfigurationError(
            f"key={key!r} names no argument of the function, whose parameters are "
            f"{', '.join(name for name in signature.parameters if name != session) or 'none'}; name one, or give a "
            "function of them: key=lambda order, amount: order"
        )
    place = [name for name in signature.parameters if name != session].index(key)
    if parameter.kind is parameter.KEYWORD_ONLY:
        place = sys.maxsize
    default = parameter.default

    def of(*args: Any, **kwargs: Any) -> Id | None:
        given: Any = args[place] if place < len(args) else kwargs.get(key, default)
        if given is parameter.empty:
            raise TypeError(f"missing the argument {key!r}, which is the key")
        return given  # type: ignore[no-any-return]

    return of


def body_of(message: Message) -> bytes | None:
    """The fingerprint of a message whose body stands for it."""
    return message.body


def bytes_of(content: Id | None) -> bytes | None:
    """A fingerprint as the body of a message."""
    if content is None or isinstance(content, bytes):
        return content
    text = id_of(content, "a fingerprint")
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


_MOST_CONSUMERS: Final = 1000
_consumers: Final[dict[tuple[Any, ...], AnyConsumer]] = {}


def once(
    checker: AbstractIdempotentChecker | str,
    key: Id | None,
    *,
    group: str,
    name: str = "once",
    fingerprint: Id | None = None,
    session: type | None = None,
    wait_s: float = 0.0,
    max_attempts: int | None = None,
    dead_for: Exceptions = (),
    on_expired_lease: ExpiredLeasePolicy | Literal["retry", "park"] = OnExpiredLease.RETRY,
    on_cancel: OnCancel | Literal["retry", "park"] = OnCancel.RETRY,
) -> Once:
    """Let the block of a `with`, or of an `async with`, run once for each key.

    The end of the block records it; an exception in it passes through, and the key is free again. A block whose key is
    done does not begin: `DuplicateError` is raised, with the value that the first one stored. Otherwise entering raises
    what a call of an `@idempotent` function raises. Leaving raises a StoreError if the store does not record the block.

    Args:
        checker: an instance, a URL, or the name of a checker of the default registry.
        key: what identifies the block's effect.
        group: who uses the keys, such as the service.
        name: what the keys are of, such as the queue. Two blocks of one group without a name share their keys.
        fingerprint: what must be equal in all blocks with this key.
        session: a type of SQLAlchemy: `block.session` is then the session or connection of the transaction that holds
            the key, with a `TransactionalSqlChecker`.
        wait_s: seconds to wait for another block with this key, before `InProgressError`.
        max_attempts: failed blocks after which the key is dead; None: its callers decide.
        dead_for: exceptions after which the key is dead at once.
        on_expired_lease: see `@consumer`.
        on_cancel: see `@consumer`; a block cannot `finish`, because its task is cancelled in it.

    Raises:
        ConfigurationError: invalid options.
    """
    if on_cancel in (OnCancel.FINISH, OnCancel.FINISH.value):
        raise ConfigurationError(
            "on_cancel='finish' cannot go with once(): put the block into an @idempotent function"
        )
    options: dict[str, Any] = {
        "checker": checker,
        "group": group,
        "fingerprint": None if fingerprint is None else body_of,
        "max_attempts": max_attempts,
        "dead_for": dead_for,
        "on_expired_lease": on_expired_lease,
        "on_cancel": on_cancel,
    }

    def consumer_of(*, is_async: bool) -> AnyConsumer:
        settings = (name, session, is_async, *options.values())
        found = _consumers.get(settings)
        if found is None:
            again = _again_async if is_async else _again
            handler: Any = Handler(again, session, batch=False, is_async=is_async)
            declared = default_registry.consumer(name, codec=JsonCodec(), registered=False, **options)
            found = declared(handler)
            # A callable that is made for each block is another setting each time.
            while len(_consumers) >= _MOST_CONSUMERS:
                _consumers.pop(next(iter(_consumers)), None)
            _consumers[settings] = found
        return found

    message = Message(name, bytes_of(fingerprint), id=key)
    return Once(consumer_of, message, seconds(wait_s, "wait_s", zero=True))


def _again(*_: Any) -> NoReturn:
    # A block cannot be run again, as a handler is whose transaction the database undid.
    raise DoomedTransactionError("the database undid the transaction of the block; run it again")


async def _again_async(*_: Any) -> NoReturn:
    _again()
