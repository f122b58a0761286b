"""dramatiq: `@idempotent_actor`, `IdempotentActor` and `Idempotency`: actors that run once for each key."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, ParamSpec, TypeVar, cast

from idempotent.adapters.plug_in import FINAL, Task
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.codecs import Codec, codec_for
from idempotent.errors import ConfigurationError, MissingExtraError, described
from idempotent.function import Id
from idempotent.logs import EventLog
from idempotent.processing.holding import HELD, retry_after_s
from idempotent.processing.options import ExpiredLeasePolicy

try:
    from dramatiq import Actor, Broker, MessageProxy, RateLimitExceeded, Retry, actor, get_broker
    from dramatiq.middleware import CurrentMessage, SkipMessage
except ImportError as error:
    raise MissingExtraError("dramatiq", "dramatiq") from error

if TYPE_CHECKING:
    from dramatiq.actor import ActorDecorator

log = EventLog(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_OPTION: Final = "idempotent"
_DEMANDED: Final = frozenset({"checker", "group"})
_OPTIONS: Final = frozenset({*_DEMANDED, "key", "codec", "on_expired_lease"})
_ANSWERS: Final = (Retry, RateLimitExceeded, SkipMessage)
_LONGEST_DELAY_S: Final = 5.0
# The message whose actor runs here: the actor may call itself, or another one, as a function.
_running: Final[ContextVar[object]] = ContextVar("idempotent_dramatiq_running", default=None)


class Idempotency(CurrentMessage):
    """Middleware of a broker whose actors run once for each key: `broker.add_middleware(Idempotency())`.

    It allows the option `idempotent`, and tells an actor its message. Add it before the actors are declared.
    """

    @property
    def actor_options(self) -> set[str]:
        """The option of `IdempotentActor`."""
        return {_OPTION}


class IdempotentActor(Actor[P, R]):
    """An actor that runs once for each key, in the workers of a broker with the middleware `Idempotency`.

    `@idempotent_actor` makes one; so does `@dramatiq.actor(actor_class=IdempotentActor, idempotent={"checker": checker,
    "group": "shop"})`. An actor with a `TransactionalSqlChecker` takes the session of the transaction that holds its
    key by annotation, as `@idempotent` does; who sends a message leaves that argument out.

    A duplicate returns the stored result, so dramatiq stores it and goes on with pipelines and callbacks. While another
    worker runs the actor, or the store does not answer, the message is sent again with a delay; this uses up no retry.
    An actor fails without a retry, and its message is dead-lettered, with:

    - `ResultNotStoredError`: it ran before, and its result is not stored or cannot be read.
    - `DeadKeyError`: the key is dead (`on_expired_lease="park"`, or five processes died in the actor).
    - `MissingKeyError`: the key is empty or None.

    Calling it as a function, `charge("7")`, runs it without protection, because such a call has no message.

    Raises:
        ConfigurationError: the actor has no checker or group, or an option or argument that does not exist; an `async
            def` with a session, a session without a transactional checker, a result that no codec can store.
    """

    def __init__(
        self,
        fn: Callable[P, Awaitable[R]] | Callable[P, R],
        *,
        broker: Broker,
        actor_name: str,
        queue_name: str,
        priority: int,
        options: dict[str, Any],
    ) -> None:
        """Declare the consumer of the actor, then the actor."""
        given = {name: value for name, value in options.get(_OPTION, {}).items() if value is not None}
        if not _DEMANDED <= given.keys() <= _OPTIONS:
            raise ConfigurationError(
                f"{actor_name}: idempotent= takes checker and group, and may take key, codec and on_expired_lease; "
                f"it has {', '.join(sorted(given)) or 'nothing'}"
            )
        task = self._task = Task(fn, given.pop("key", None), _ANSWERS)
        if task.handler.is_async and task.session is not None:
            raise ConfigurationError(
                f"{actor_name} is an `async def` with a session, which dramatiq runs from a thread: write a `def` that "
                "takes a Session"
            )
        # dramatiq runs an `async def` in another thread, and waits for it in this one.
        task.handler = replace(task.handler, is_async=False)
        task.declare(actor_name, codec=given.pop("codec", None) or codec_for(fn), **given)
        thrown = options.get("throws") or ()
        options["throws"] = (*(thrown if isinstance(thrown, tuple) else (thrown,)), *FINAL)
        super().__init__(
            fn,
            broker=broker,
            actor_name=actor_name,
            queue_name=queue_name,
            priority=priority,
            options=options,
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the actor once for its key, if a worker calls it."""
        proxy, plain = CurrentMessage.get_current_message(), super().__call__
        if proxy is None or proxy is _running.get() or proxy.actor_name != self.actor_name:
            return plain(*args, **kwargs)

        def run(**session: Any) -> Any:
            token = _running.set(proxy)
            try:
                return plain(*args, **{**kwargs, **session})
            finally:
                _running.reset(token)

        task, consumer = self._task, self._task.consumer
        message = task.message(proxy.message_id, args, kwargs)
        result = task.process(message, run)
        if result.outcome in HELD:
            again_s = retry_after_s(result, _LONGEST_DELAY_S)
            self._send_again(cast("MessageProxy", proxy), consumer.error_of(message, result), again_s)
        return cast("R", consumer.value_of(message, result))

    def _send_again(self, proxy: MessageProxy, why: BaseException, delay_s: float) -> NoReturn:
        """Send the message again, with a delay and all its options, and skip this copy.

        An exception of dramatiq's own Retry would use up a retry, and start `on_failure`.
        """
        while True:
            try:
                self.broker.enqueue(cast("Any", proxy), delay=int(delay_s * 1000))
                break
            except Exception as error:
                # The broker is away, and still has this copy, which no worker has acknowledged.
                log.warning(
                    "message_not_sent_again",
                    extra={"consumer": self._task.consumer.name, "error": described(error)},
                )
                time.sleep(delay_s)
        # Else the middleware Results would store None as the result of a message that is skipped.
        proxy.options["store_results"] = False
        raise SkipMessage(str(why))


def idempotent_actor(
    *,
    checker: AbstractIdempotentChecker | str,
    group: str,
    key: str | Callable[..., Id | None] | None = None,
    codec: Codec | None = None,
    on_expired_lease: ExpiredLeasePolicy | Literal["retry", "park"] | None = None,
    broker: Broker | None = None,
    **options: Any,
) -> ActorDecorator:
    """`@dramatiq.actor(actor_class=IdempotentActor, ...)` with types: see `IdempotentActor`.

    Args:
        checker: an instance, a URL, or the name of a checker of the default registry.
        group: who uses the keys, such as the service. Part of the key, as in `@consumer`.
        key: the name of an argument, or a function that is called with the actor's arguments and returns what
            identifies the message, as str, bytes, int or UUID; None: the id of the message.
        codec: stores the result; None: by the function's return annotation, see `idempotent.codecs`.
        on_expired_lease: what to do if the process died in the actor, with a checker whose effects do not commit with
            the key: see `@consumer`; None: run again.
        broker: None: the global one.
        options: other options of `@dramatiq.actor`, such as `actor_name="charge"` or `max_retries=3`.

    Raises:
        ConfigurationError: the broker has no middleware `Idempotency`.
    """
    found = broker or get_broker()
    if _OPTION not in found.actor_options:
        raise ConfigurationError(
            "add the middleware first: broker.add_middleware(Idempotency()), of idempotent.adapters.dramatiq"
        )
    ours = {
        "checker": checker,
        "group": group,
        "key": key,
        "codec": codec,
        "on_expired_lease": on_expired_lease,
    }
    return actor(broker=found, **{"actor_class": IdempotentActor, _OPTION: ours, **options})
