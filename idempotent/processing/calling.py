"""Calls, AsyncCalls: run a consumer's functions: its handler, and the one that it may have for lapsed leases."""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar, Token
from functools import partial
from itertools import islice
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final

from idempotent.checkers.awaiting import Awaiting
from idempotent.checkers.transactions import TransactionHooks
from idempotent.claims import Claim
from idempotent.errors import ConfigurationError, HandlerCancelledError, HandlerTimeoutError
from idempotent.forks import end_child, generation
from idempotent.keys import NO_KEY, Key
from idempotent.message import Message
from idempotent.observe.observers import Observers
from idempotent.processing.handler import Handler

_current_claim: ContextVar[Claim | None] = ContextVar("idempotent_current_claim", default=None)
# In a batch handler: it has a claim for each message, and none is the current one.
_MANY: Final = Claim(NO_KEY)
_MANY_LEASED: Final = Claim(NO_KEY)
RETURNED: Final = math.inf
"""In the place of the time at which a handler began: it has returned or raised."""

# What most handlers return. Asking an abstract class takes longer than all other work of this module.
_PLAIN: Final = frozenset({bool, int, float, str, bytes, type(None)})
# A wrapped `async def` or generator function looks like any other function, and nothing of it has run. Not every
# iterator: a file or the result of a statement is one too.
_READ_LATER: Final = (GeneratorType, AsyncGeneratorType, map, filter, zip, enumerate)
_PENDING: Final = (*_READ_LATER, Future, Awaitable, partial)
_CONTAINERS: Final = (list, tuple, dict, set, frozenset, deque)
# A large result is not read to its end: the members of a list are of one kind.
_MOST_MEMBERS: Final = 100
_DEEPEST: Final = 4


def current_claim() -> Claim:
    """The claim of the message that the running handler processes: its key, and the fence to send downstream.

    A message that runs without protection has a claim of its key with the fence 0.

    Raises:
        LookupError: no handler is running in this context, it is a batch handler, or the message has no key.
    """
    claim = claim_if_any()
    if claim is None:
        raise LookupError("current_claim() works only inside a handler that takes one message")
    if claim.key is NO_KEY:
        raise LookupError(
            "current_claim(): the message has no key, and runs because of on_missing_key='process'"
        )
    return claim


def claim_if_any() -> Claim | None:
    """The claim of the message that the running handler processes; None outside of a handler, and for a batch."""
    claim = _current_claim.get()
    return None if claim is _MANY or claim is _MANY_LEASED else claim


def enter_claim(claim: Claim) -> Token[Claim | None]:
    """Make it the claim of the code that runs from now on, until `leave_claim`."""
    return _current_claim.set(claim)


def leave_claim(token: Token[Claim | None]) -> None:
    """End what `enter_claim` began."""
    with suppress(ValueError):  # left in another context, such as by a closed task
        _current_claim.reset(token)


def inside_handler() -> bool:
    """Whether a handler runs in this context."""
    return _current_claim.get() is not None


def inside_leased_batch() -> bool:
    """Whether a batch handler runs in this context whose effects do not commit with its keys."""
    return _current_claim.get() is _MANY_LEASED


def _of_batch(claim: Claim) -> Claim:
    """What stands for the claims of a batch handler, one of which is given."""
    return _MANY_LEASED if claim.owner and claim.transaction is None else _MANY


class Began:
    """When handlers began, while a worker watches. Otherwise no message pays for it.

    Attributes:
        began: by the `id()` of the message, in seconds of `time.monotonic`; RETURNED: it runs no more. The life of the
            message removes it. None: nothing watches.
    """

    began: dict[int, float] | None = None

    def watch(self) -> None:
        """Note from now on when handlers begin."""
        if self.began is None:
            self.began = {}

    def _note(self, messages: Sequence[Message], when: float) -> None:
        if self.began is not None:
            self.began.update(dict.fromkeys(map(id, messages), when))


class Calls(Began):
    """Runs the functions of a consumer whose handler is a plain function.

    Args:
        name: the consumer's name.
        handler: its handler.
        transactions: provide the handler's second parameter.
        observers: those of the registry.
    """

    def __init__(
        self, name: str, handler: Handler, transactions: TransactionHooks, observers: Observers
    ) -> None:
        self._name = name
        self._handler = handler
        self._function = handler.call or handler.function
        self._transactions = transactions
        self._observers = observers

    def one(self, claim: Claim, message: Message) -> Any:
        """Run the handler on one message and return its value. Exceptions pass through."""
        handler = self._handler
        process = generation.number
        batch = handler.batch
        began = self.began
        before = _current_claim.get()
        try:
            # Set in here, and set back first: a signal handler may raise behind every call.
            _current_claim.set(_of_batch(claim) if batch else claim)
            if began is not None:
                began[id(message)] = time.monotonic()
            first: Any = [message] if batch else message
            if self._observers.watch_runs:
                return self._watched(claim, (message,), self._arguments(claim, first))
            if handler.session_type is None:
                returned = self._function(first)
            else:
                returned = self._function(
                    first, self._transactions.handler_argument(claim, handler.session_type)
                )
            return None if returned is None else finished(returned)
        finally:
            _current_claim.set(before)
            if generation.number != process:
                end_child(self._name)
            if began is not None:
                began[id(message)] = RETURNED

    def batch(self, claim: Claim, messages: Sequence[Message]) -> Any:
        """Run a batch handler on all messages together. Exceptions pass through."""
        arguments = self._arguments(claim, list(messages))
        process = generation.number
        before = _current_claim.get()
        try:
            _current_claim.set(_of_batch(claim))
            self._note(messages, time.monotonic())
            if self._observers.watch_runs:
                return self._watched(claim, messages, arguments)
            return finished(self._function(*arguments))
        finally:
            _current_claim.set(before)
            if generation.number != process:
                end_child(self._name)
            self._note(messages, RETURNED)

    @staticmethod
    def ask(question: Callable[[Key], Any], key: Key) -> Any:
        """Ask the consumer about the effect of a lapsed claim. Exceptions pass through."""
        return finished(question(key))

    def _arguments(self, claim: Claim, first: Any) -> tuple[Any, ...]:
        session_type = self._handler.session_type
        return (
            (first,)
            if session_type is None
            else (first, self._transactions.handler_argument(claim, session_type))
        )

    def _watched(self, claim: Claim, messages: Sequence[Message], arguments: tuple[Any, ...]) -> Any:
        began = time.perf_counter()
        error: BaseException | None = None
        try:
            with self._observers.around(self._name, messages, claim):
                return finished(self._function(*arguments))
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._observers.ran(self._name, messages, time.perf_counter() - began, error)


class AsyncCalls(Began):
    """Runs the functions of a consumer whose handler is an `async def`.

    Args:
        name: the consumer's name.
        handler: its handler.
        awaiting: asks the checker for the handler's second parameter.
        transactions: provide it.
        observers: those of the registry.
        timeout_s: seconds after which a handler is cancelled and has failed; None: never.
    """

    def __init__(
        self,
        name: str,
        handler: Handler,
        awaiting: Awaiting,
        transactions: TransactionHooks,
        observers: Observers,
        timeout_s: float | None,
    ) -> None:
        self._name = name
        self._handler = handler
        self._function = handler.call or handler.function
        self._awaiting = awaiting
        self._transactions = transactions
        self._observers = observers
        self._timeout_s = timeout_s

    def one(self, claim: Claim, message: Message) -> Coroutine[Any, Any, Any]:
        """Run the handler on one message and return its value. Exceptions pass through."""
        return self._run(claim, (message,), [message] if self._handler.batch else message)

    def batch(self, claim: Claim, messages: Sequence[Message]) -> Coroutine[Any, Any, Any]:
        """Run a batch handler on all messages together. Exceptions pass through."""
        return self._run(claim, messages, list(messages))

    @staticmethod
    async def ask(question: Callable[[Key], Any], key: Key) -> Any:
        """Ask the consumer about the effect of a lapsed claim: a plain function in a thread, because it may block."""
        if inspect.iscoroutinefunction(question):
            return finished(await question(key))
        return finished(await asyncio.to_thread(question, key))

    async def _run(self, claim: Claim, messages: Sequence[Message], first: Any) -> Any:
        before, token = _current_claim.get(), None
        try:
            token = _current_claim.set(_of_batch(claim) if self._handler.batch else claim)
            if self._observers.watch_runs:
                with self._observers.around(self._name, messages, claim):
                    return await self._awaited(claim, messages, first)
            return await self._awaited(claim, messages, first)
        finally:
            if token is None:  # a signal handler raised
                _current_claim.set(before)
            else:
                try:  # noqa: SIM105 - `suppress` would take as long as a step
                    _current_claim.reset(token)
                except ValueError:  # closed outside its task, which is gone
                    pass

    async def _awaited(self, claim: Claim, messages: Sequence[Message], first: Any) -> Any:
        """Await a handler. A cancellation passes through only if it is that of the task which awaits it."""
        handler = self._handler
        arguments = [first]
        if handler.session_type is not None:
            hook = self._transactions.handler_argument
            arguments.append(await self._awaiting.begin(hook, claim, handler.session_type))
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        process = generation.number
        began = time.monotonic()
        try:
            self._note(messages, began)
            returned = await (
                self._function(*arguments)
                if self._timeout_s is None
                else self._bounded(self._timeout_s, self._function(*arguments))
            )
            return None if returned is None else finished(returned)
        except asyncio.CancelledError as error:
            if task.cancelling() > before:
                raise
            raise HandlerCancelledError from error
        except Exception as error:
            cancelled = _cancellation_behind(error) if task.cancelling() > before else None
            if cancelled is not None:
                # What a handler raises because it is cancelled is no failure of its message.
                raise cancelled from error
            raise
        finally:
            if generation.number != process:
                end_child(self._name)
            self._note(messages, RETURNED)
            if self._observers.watch_runs:
                self._observers.ran(self._name, messages, time.monotonic() - began, sys.exc_info()[1])

    @staticmethod
    async def _bounded(timeout_s: float, running: Coroutine[Any, Any, Any]) -> Any:
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                return await running
        except TimeoutError as error:
            if limit.expired():
                raise HandlerTimeoutError(
                    f"the handler was cancelled after handler_timeout_s={timeout_s:g}"
                ) from error
            raise


def _cancellation_behind(error: Exception) -> asyncio.CancelledError | None:
    """The cancellation while which an exception was raised.

    That the cancellations of the task have become more does not say so: the handler may have caught one, and before
    Python 3.13 they become more when a TaskGroup in it stops because one of its tasks failed.
    """
    raised: BaseException | None = error
    seen: set[int] = set()
    while raised is not None and id(raised) not in seen:
        if isinstance(raised, asyncio.CancelledError):
            return raised
        seen.add(id(raised))
        raised = raised.__context__
    return None


def finished(returned: Any) -> Any:
    """What a function of the application returned.

    Raises:
        ConfigurationError: a coroutine, a generator, a future or the like, or a container of them: its work has not
            run, or not to its end.
    """
    if type(returned) in _PLAIN:
        return returned
    pending = list(_pending_in(returned, _DEEPEST))
    if not pending:
        return returned
    first = pending[0]
    if isinstance(first, CoroutineType):
        advice = "which was never awaited; await it in an `async def` handler, or run it with asyncio.run()"
    elif isinstance(first, (Future, Awaitable)):
        advice = "which may not be done; wait for its result in the handler"
    elif isinstance(first, partial):
        advice = "which was never called; call it in the handler"
    else:
        advice = "which runs when it is read; read it in the handler, for example with list()"
    for each in pending:
        if isinstance(each, CoroutineType):
            each.close()  # else Python warns that it was never awaited
    within = "" if first is returned else f"{type(returned).__name__} with a "
    raise ConfigurationError(f"the handler returned a {within}{type(first).__name__}, {advice}")


def _pending_in(value: Any, depth: int) -> Iterator[Any]:
    if type(value) in _PLAIN:
        return
    if isinstance(value, _CONTAINERS):
        members = value.values() if isinstance(value, dict) else value
        for member in islice(members, _MOST_MEMBERS) if depth else ():
            yield from _pending_in(member, depth - 1)
    elif type(value).__module__ == "itertools" or isinstance(value, _PENDING):
        yield value
