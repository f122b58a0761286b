"""taskiq: `@idempotent_task`, whose tasks run once for each key."""

from __future__ import annotations

import asyncio
import functools
import inspect
import typing
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final, Literal, NoReturn, ParamSpec, TypeVar, cast

from idempotent.adapters.plug_in import FINAL, Task
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.codecs import Codec, codec_for
from idempotent.errors import MissingExtraError, ResultNotStoredError, described
from idempotent.function import Id
from idempotent.logs import EventLog
from idempotent.message import Message
from idempotent.outcomes import Result
from idempotent.policy import OnCancel, OnExpiredLease
from idempotent.processing.holding import HELD, retry_after_s
from idempotent.processing.options import ExpiredLeasePolicy

try:
    from taskiq import AsyncBroker, AsyncTaskiqDecoratedTask, Context, TaskiqDepends
    from taskiq.exceptions import NoResultError, TaskRejectedError
except ImportError as error:
    raise MissingExtraError("taskiq", "taskiq") from error

log = EventLog(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_CONTEXT: Final = "idempotent_context"
_ANSWERS: Final = (NoResultError, TaskRejectedError)


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
        task = Task(function, key, _ANSWERS)
        results = codec or codec_for(function)
        made: AsyncTaskiqDecoratedTask[P, R] = broker.task(**labels)(_shown(task, function))
        task.declare(
            made.task_name,
            checker=checker,
            group=group,
            codec=results,
            on_expired_lease=on_expired_lease,
            on_cancel=on_cancel,
        )
        return made

    return decorate


def _shown(task: Task, function: Callable[..., Any]) -> Callable[..., Any]:
    """What taskiq calls: the function without its session, with the context of the message."""

    async def run_async(*args: Any, **kwargs: Any) -> Any:
        context = kwargs.pop(_CONTEXT, None)
        if context is None:
            return await function(*args, **kwargs)
        message = _message(task, context)
        result = await task.process_async(message, partial(function, *args, **kwargs))
        value = _end(task, context, message, result)
        return await value if inspect.iscoroutine(value) else value

    def run(*args: Any, **kwargs: Any) -> Any:
        context = kwargs.pop(_CONTEXT, None)
        if context is None:
            return function(*args, **kwargs)
        message = _message(task, context)
        result = task.process(message, partial(function, *args, **kwargs))
        # taskiq awaits a coroutine that a plain function returns in its thread.
        return _end(task, context, message, result)

    shown: Any = functools.wraps(function)(run_async if task.handler.is_async else run)
    # Behind __wrapped__, taskiq would see the function's parameters.
    del shown.__wrapped__
    hints = typing.get_type_hints(function, include_extras=True)
    kept = [
        each.replace(annotation=hints.get(each.name, each.annotation))
        for each in task.signature.parameters.values()
    ]
    context = inspect.Parameter(
        _CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[Context, TaskiqDepends()]
    )
    place = len(kept) - (bool(kept) and kept[-1].kind is inspect.Parameter.VAR_KEYWORD)
    kept.insert(place, context)
    shown.__signature__ = task.signature.replace(parameters=kept)
    hints.pop(task.session or "", None)
    shown.__annotations__ = {**hints, _CONTEXT: context.annotation}
    return cast("Callable[..., Any]", shown)


def _message(task: Task, context: Context) -> Message:
    """The message of the key of what was sent."""
    sent = context.message
    return task.message(sent.task_id, sent.args, sent.kwargs)


def _end(task: Task, context: Context, message: Message, result: Result) -> Any:
    """The value of the task, or what taskiq awaits for it; raises why it has none."""
    if result.outcome in HELD:
        why = str(task.consumer.error_of(message, result))
        log.debug("task_held", extra={"consumer": task.consumer.name, "reason": why})
        return _send_again(context, task.consumer.name, retry_after_s(result))
    try:
        return task.consumer.value_of(message, result)
    except FINAL as error:
        context.message.labels["retry_on_error"] = False
        if isinstance(error, ResultNotStoredError):
            return _keep(context, error)
        raise


async def _send_again(context: Context, consumer: str, hold_s: float) -> NoReturn:
    """Hold the message for a moment, and send it again with all its labels."""
    # A timeout in the pause would be an error, and the result of the task that runs.
    hold_s = min(hold_s, float(context.message.labels.get("timeout", hold_s)) / 2)
    while True:
        await asyncio.sleep(hold_s)
        try:
            await context.requeue()
        except NoResultError:
            raise
        except Exception as error:
            # The broker is away. taskiq would acknowledge the message of a task that raises this.
            log.warning("message_not_sent_again", extra={"consumer": consumer, "error": described(error)})


async def _keep(context: Context, error: ResultNotStoredError) -> NoReturn:
    """Raise the error, unless it would replace the result that taskiq has of the first run."""
    if await context.broker.result_backend.is_result_ready(context.message.task_id):
        raise NoResultError from error
    raise error
