"""Celery: `IdempotentTask` and `@idempotent_task`, whose tasks run once for each key."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, ClassVar, Literal, NoReturn

from idempotent.adapters import plug_in
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.codecs import Codec, codec_for
from idempotent.errors import ConfigurationError, MissingExtraError
from idempotent.function import Id
from idempotent.logs import EventLog
from idempotent.policy import OnExpiredLease
from idempotent.processing.holding import HELD, retry_after_s
from idempotent.processing.options import ExpiredLeasePolicy

try:
    from celery import Celery, Task
    from celery.exceptions import Ignore, Reject, TaskPredicate
except ImportError as error:
    raise MissingExtraError("celery", "celery") from error

log = EventLog(__name__)

_LONGEST_COUNTDOWN_S = 5.0


class IdempotentTask(Task):  # type: ignore[misc] # Celery ships no types
    """A task that runs once for each key: `@app.task(base=IdempotentTask, checker=checker, group="shop")`.

    The options are attributes of the class, as Celery's own: give them to `@app.task`, or to a subclass of this one, as
    the `base` of many tasks. A task with a `TransactionalSqlChecker` takes the session of the transaction that holds
    its key by annotation, as `@idempotent` does; who sends the task leaves that argument out.

    A duplicate returns the stored result, so Celery stores it and starts the callbacks, the next task of a chain and
    the chord again. While another worker runs the task, or the store does not answer, the message is sent again with a
    countdown; this uses up no retry. A task fails with:

    - `ResultNotStoredError`: it ran before, and its result is not stored or cannot be read.
    - `DeadKeyError`: the key is dead (`on_expired_lease="park"`, or five processes died in the task).
    - `MissingKeyError`: the key is empty or None.
    - `InProgressError` and `StoreError` only where no broker is: by `apply()` and `task_always_eager`.

    Calling it as a function, `charge("7")`, runs it without protection, because such a call has no id.

    Attributes:
        checker: an instance, a URL, or the name of a checker of the default registry.
        group: who uses the keys, such as the service. Part of the key, as in `@consumer`.
        key: the name of an argument, or a function that is called with the task's arguments and returns what identifies
            the call, as str, bytes, int or UUID; None: the id of the task.
        codec: stores the result; None: by the function's return annotation, see `idempotent.codecs`.
        on_expired_lease: what to do if the process died in the task, with a checker whose effects do not commit with
            the key: see `@consumer`.

    Raises:
        ConfigurationError: when Celery makes the task: no checker or group, an `async def`, an argument that the task
            does not have, a session without a transactional checker, a result that no codec can store.
    """

    checker: ClassVar[AbstractIdempotentChecker | str | None] = None
    group: ClassVar[str | None] = None
    key: ClassVar[Any] = None
    codec: ClassVar[Codec | None] = None
    on_expired_lease: ClassVar[Any] = OnExpiredLease.RETRY

    abstract = True
    acks_late = True
    reject_on_worker_lost = True

    _task: ClassVar[plug_in.Task]
    _consumer: ClassVar[Any]

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Declare the consumer of the task."""
        super().on_bound(app)
        run = inspect.getattr_static(cls, "run")
        if not cls.name or run is inspect.getattr_static(Task, "run"):
            return  # a base of other tasks
        if cls.checker is None or cls.group is None:
            raise ConfigurationError(
                f"{cls.name} needs checker= and group=, as arguments of @app.task or attributes of its base"
            )
        # One that takes the task as `self` is a method.
        function = cls.run if isinstance(run, staticmethod) else MethodType(run, cls)
        task = cls._task = plug_in.Task(function, _given(cls, "key"), (TaskPredicate,))
        if task.handler.is_async:
            raise ConfigurationError(
                f"{cls.name} is an `async def`, which Celery does not run: write a `def`"
            )
        task.declare(
            cls.name,
            checker=cls.checker,
            group=cls.group,
            codec=cls.codec or codec_for(_returning(function)),
            on_expired_lease=_given(cls, "on_expired_lease"),
        )
        cls._consumer = task.consumer
        if task.session is not None:
            # When a task is sent, Celery checks its arguments against this signature.
            cls.__header__ = staticmethod(task.signature.bind)
        if not (cls.acks_late and cls.reject_on_worker_lost):
            hint = "a task whose process dies is lost: leave acks_late and reject_on_worker_lost at True"
            log.warning("task_acknowledged_early", extra={"consumer": task.consumer.name, "hint": hint})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task once for its key, if a worker, `apply()` or `task_always_eager` calls it."""
        request, consumer = self.request, self._consumer
        if request.called_directly:
            return super().__call__(*args, **kwargs)
        message = self._task.message(request.id, args, kwargs)
        result = self._task.process(message, partial(self.run, *args, **kwargs))
        if result.outcome in HELD and not request.is_eager:
            self._send_again(consumer.error_of(message, result), retry_after_s(result, _LONGEST_COUNTDOWN_S))
        return consumer.value_of(message, result)

    def _send_again(self, why: BaseException, countdown_s: float) -> NoReturn:
        """Send the message of the task again, with a countdown and as many retries as it has had."""
        request = self.request
        again = self.signature_from_request(request, countdown=countdown_s, retries=request.retries)
        try:
            again.apply_async()
        except Exception as error:
            # The broker is away, and still has the message that a worker did not acknowledge. The pause is there so
            # that the broker does not deliver it again at once.
            time.sleep(countdown_s)
            raise Reject(error, requeue=True) from error
        raise Ignore(str(why))


def idempotent_task(
    app: Celery,
    *,
    checker: AbstractIdempotentChecker | str,
    group: str,
    key: str | Callable[..., Id | None] | None = None,
    codec: Codec | None = None,
    on_expired_lease: ExpiredLeasePolicy | Literal["retry", "park"] = OnExpiredLease.RETRY,
    **options: Any,
) -> Callable[[Callable[..., Any]], Any]:
    """`@app.task(base=IdempotentTask, ...)` with types: see `IdempotentTask`.

    Args:
        app: the application of Celery.
        checker: see there, as the next four.
        group: see there.
        key: see there.
        codec: see there.
        on_expired_lease: see there.
        options: other options of `@app.task`, such as `bind=True` or `autoretry_for=(OSError,)`.
    """
    ours = {"checker": checker, "group": group, "key": key, "codec": codec}
    made: Callable[[Callable[..., Any]], Any] = app.task(
        **{"base": IdempotentTask, **ours, "on_expired_lease": on_expired_lease, **options}
    )
    return made


def _given(cls: type, name: str) -> Any:
    """An attribute as it was given, and a function not as a method."""
    found = inspect.getattr_static(cls, name)
    return found.__func__ if isinstance(found, staticmethod) else found


def _returning(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the annotation of what the task returns: behind `pydantic=True`, it is the dict of its model."""
    dumps = getattr(function, "__globals__", {}).get("__name__") == "celery.app.base"
    return (lambda: None) if dumps else function
