"""taskiq: `@idempotent_task`, whose tasks run once for each key."""

from __future__ import annotations

import asyncio
import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, Literal, NoReturn, ParamSpec, TypeVar, cast

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.codecs import Codec, codec_for
from idempotent.consumer import AnyConsumer, AsyncConsumer, Consumer
from idempotent.errors import (
    DeadKeyError,
    MissingExtraError,
    MissingKeyError,
    ResultNotStoredError,
    described,
)
from idempotent.function import Id, error_of, key_of, value_of
from idempotent.logs import EventLog
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.policy import OnCancel, OnExpiredLease
from idempotent.processing.handler import Handler, function_of
from idempotent.processing.options import ExpiredLeasePolicy
from idempotent.registry import default_registry

try:
    from taskiq import AsyncBroker, AsyncTaskiqDecoratedTask, Context, TaskiqDepends
    from taskiq.exceptions import NoResultError, TaskRejectedError
except ImportError as error:
    raise MissingExtraError("taskiq", "taskiq") from error

log = EventLog(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_CONTEXT: Final = "idempotent_context"
_FINAL: Final = (DeadKeyError, MissingKeyError, ResultNotStoredError)
_ANSWERS: Final = (NoResultError, TaskRejectedError)
_AGAIN: Final = (Outcome.IN_PROGRESS, Outcome.UNAVAILABLE)
# Who has the key may end at any moment: the rest of its lease says nothing about that.
_LONGEST_HOLD_S: Final = 1.0


def idempotent_task(
    broker: AsyncBroker,
    *,
    checker: AbstractIdempotentChecker | str,
    group: str,
    key: str | Callable[..., Id | None] | None = None,
    codec: Codec | None = None,
    on_expired_lease: ExpiredLeasePolicy | Literal["retry", "park"] = OnExpiredLease.RETRY,
    on_cancel: OnCancel | Literal["retry", "park", "finish"] = OnCancel.RETRY,
    **labels: Any,
) -> Callable[[Callable[P, R]], AsyncTaskiqDecoratedTask[P, R]]:
    """`@broker.task(...)`, whose task runs once for each key.

    A task with a `TransactionalSqlChecker` takes the session of the transaction that holds its key by annotation, as
    `@idempotent` does; who sends the task leaves that argument out. Its other dependencies are taskiq's, as before.

    A duplicate returns the stored result, so taskiq stores it and goes on. While another worker runs the task, or the
    store does not answer, the message is held for up to a second and sent again; this uses up no retry. A task fails
    without a retry with:

    - `ResultNotStoredError`: it ran before, and its result is not stored or cannot be read.
    - `DeadKeyError`: the key is dead (`on_expired_lease="park"`, or five processes died in the task).
    - `MissingKeyError`: the key is empty or None.

    Calling it as a function, `await charge("7")`, runs it without protection, because such a call has no id.

    Args:
        broker: the broker of taskiq.
        checker: an instance, a URL, or the name of a checker of the default registry.
        group: who uses the keys, such as the service. Part of the key, as in `@consumer`.
        key: the name of an argument, or a function that is called with the arguments that were sent and returns what
            identifies the call, as str, bytes, int or UUID; None: the id of the task.
        codec: stores the result; None: by the function's return annotation, see `idempotent.codecs`.
        on_expired_lease: what to do if the process died in the task, with a checker whose effects do not commit with
            the key: see `@consumer`.
        on_cancel: what it means that the label `timeout` ends an `async def`: see `@consumer`.
        labels: labels, and `task_name`, as for `@broker.task`.

    Raises:
        ConfigurationError: invalid options; an argument that the task does not have, a session without a transactional
            checker, a result that no codec can store.
    """

    def decorate(function: Callable[P, R]) -> AsyncTaskiqDecoratedTask[P, R]:
        handler, session = function_of(function)
        signature = inspect.signature(function)
        identify = None if key is None else key_of(key, signature, session)
        results = codec or codec_for(function)
        task = _Task(function, handler, session, identify)
        made: AsyncTaskiqDecoratedTask[P, R] = broker.task(**labels)(_shown(task, signature))
        task.consumer = default_registry.consumer(
            made.task_name,
            checker=checker,
            group=group,
            codec=results,
            max_attempts=None,
            on_expired_lease=on_expired_lease,
            on_cancel=on_cancel,
            registered=False,
        )(cast("Any", handler))
        return made

    return decorate


class _Task:
    """A task, and what runs for a message of it."""

    consumer: AnyConsumer

    def __init__(
        self,
        function: Callable[..., Any],
        handler: Handler,
        session: str | None,
        key: Callable[..., Id | None] | None,
    ) -> None:
        self.function: Final = function
        self.handler: Final = handler
        self.session: Final = session
        self._key = key

    def message(self, context: Context) -> Message:
        """The message of its key."""
        sent = context.message
        key = sent.task_id if self._key is None else self._key(*sent.args, **sent.kwargs)
        return Message(self.consumer.subject, id=key)

    def given(self, session: tuple[Any, ...]) -> dict[str, Any]:
        """The argument for the session."""
        return {} if self.session is None else {self.session: session[0]}

    def end(self, context: Context, message: Message, result: Result) -> Any:
        """The value of the task, or what taskiq awaits for it; raises why it has none."""
        if result.outcome in _AGAIN:
            return self._send_again(context, str(error_of(self.consumer, message, result)), result)
        try:
            return value_of(self.consumer, message, result)
        except _FINAL as error:
            context.message.labels["retry_on_error"] = False
            if isinstance(error, ResultNotStoredError):
                return self._keep(context, error)
            raise

    async def _send_again(self, context: Context, why: str, result: Result) -> NoReturn:
        """Hold the message for a moment, and send it again with all its labels."""
        hold_s = min(result.retry_after_s or _LONGEST_HOLD_S, _LONGEST_HOLD_S)
        # A timeout in the pause would be an error, and the result of the task that runs.
        hold_s = min(hold_s, float(context.message.labels.get("timeout", hold_s)) / 2)
        log.debug("task_held", extra={"consumer": self.consumer.name, "reason": why})
        while True:
            await asyncio.sleep(hold_s)
            try:
                await context.requeue()
            except NoResultError:
                raise
            except Exception as error:
                # The broker is away. taskiq would acknowledge the message of a task that raises this.
                about = {"consumer": self.consumer.name, "error": described(error)}
                log.warning("message_not_sent_again", extra=about)

    @staticmethod
    async def _keep(context: Context, error: ResultNotStoredError) -> NoReturn:
        """Raise the error, unless it would replace the result that taskiq has of the first run."""
        if await context.broker.result_backend.is_result_ready(context.message.task_id):
            raise NoResultError from error
        raise error


def _shown(task: _Task, signature: inspect.Signature) -> Callable[..., Any]:
    """What taskiq calls: the function without its session, with the context of the message."""
    function, handler = task.function, task.handler

    async def run_async(*args: Any, **kwargs: Any) -> Any:
        context = kwargs.pop(_CONTEXT, None)
        if context is None:
            return await function(*args, **kwargs)

        async def call(*session: Any) -> Any:
            with _answering():
                return await function(*args, **kwargs, **task.given(session))

        consumer, message = cast("AsyncConsumer", task.consumer), task.message(context)
        with _answered():
            result = await consumer.process(message, call=call, session=handler.session_type)
        value = task.end(context, message, result)
        return await value if inspect.iscoroutine(value) else value

    def run(*args: Any, **kwargs: Any) -> Any:
        context = kwargs.pop(_CONTEXT, None)
        if context is None:
            return function(*args, **kwargs)

        def call(*session: Any) -> Any:
            with _answering():
                return function(*args, **kwargs, **task.given(session))

        consumer, message = cast("Consumer[Any]", task.consumer), task.message(context)
        with _answered():
            result = consumer.process(message, call=call, session=handler.session_type)
        # taskiq awaits a coroutine that a plain function returns in its thread.
        return task.end(context, message, result)

    shown: Any = functools.wraps(function)(run_async if handler.is_async else run)
    # Behind __wrapped__, taskiq would see the function's parameters.
    del shown.__wrapped__
    hints = typing.get_type_hints(function, include_extras=True)
    kept = [
        each.replace(annotation=hints.get(each.name, each.annotation))
        for each in signature.parameters.values()
        if each.name != task.session
    ]
    context = inspect.Parameter(
        _CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[Context, TaskiqDepends()]
    )
    place = len(kept) - (bool(kept) and kept[-1].kind is inspect.Parameter.VAR_KEYWORD)
    kept.insert(place, context)
    shown.__signature__ = signature.replace(parameters=kept)
    shown.__annotations__ = {name: hint for name, hint in hints.items() if name != task.session} | {
        _CONTEXT: context.annotation
    }
    return cast("Callable[..., Any]", shown)


class _AnsweredError(BaseException):
    """The task answered taskiq with NoResultError or TaskRejectedError: no failure, so its key is free."""


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except _ANSWERS as answer:
        raise _AnsweredError(answer) from None


@contextmanager
def _answered() -> Iterator[None]:
    try:
        yield
    except _AnsweredError as answered:
        raise answered.args[0] from None
