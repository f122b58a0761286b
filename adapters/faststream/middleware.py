"""IdempotentMiddleware: lets the subscribers of FastStream handle a message once for each key."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID, uuid4, uuid5

from faststream import BaseMiddleware
from faststream.exceptions import AckMessage, IgnoredException, NackMessage, RejectMessage, StopConsume
from faststream.message import AckStatus, SourceType
from faststream.response import ensure_response

from idempotent.adapters.copies import KEY_HEADER
from idempotent.adapters.faststream.bodies import is_refused, reason_of
from idempotent.adapters.faststream.outputs import output_in, stored_of
from idempotent.adapters.faststream.route import Route, handler_in, is_fake
from idempotent.adapters.plug_in import Answered, async_session, caller, consumer_of
from idempotent.checkers import checker_from_url
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.codecs import BytesCodec, Codec
from idempotent.consumer import AsyncConsumer
from idempotent.errors import ConfigurationError, StoreBusyError, StoreUnavailableError, described
from idempotent.function import Id
from idempotent.logs import EventLog
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.policy import OnExpiredLease
from idempotent.processing.holding import HELD, repeat_while_held_async
from idempotent.processing.options import ExpiredLeasePolicy
from idempotent.validation import seconds

KeyOf: TypeAlias = "Callable[[Any], Id | Awaitable[Id | None] | None]"

log = EventLog(__name__)


class _Session:
    """The session of the transaction that holds a message's key, and whether the handler has taken it."""

    def __init__(self, given: Any) -> None:
        self.given: Final = given
        self.is_taken = False


_sessions: Final[ContextVar[_Session | None]] = ContextVar("session", default=None)


async def session() -> Any:
    """The AsyncSession that commits with the key, as a dependency: `session: AsyncSession = Depends(session)`.

    Raises:
        ConfigurationError: the handler does not run behind an IdempotentMiddleware with a TransactionalSqlChecker.
    """
    found = _sessions.get()
    if found is None or found.given is None:
        raise ConfigurationError(
            "session() is for handlers behind an IdempotentMiddleware with a TransactionalSqlChecker"
        )
    found.is_taken = True
    return found.given


def message_id(message: Any) -> Any:
    """The id of a delivery of FastStream: what is the key unless you give another one.

    On RabbitMQ the property `message_id`, on Kafka partition, offset and timestamp; on both, the header
    `x-idempotent-key` wins. FastStream's own `message_id` is a new one for each delivery of a message that has none.
    """
    given, raw = message.headers.get(KEY_HEADER), message.raw_message
    if given not in (None, "", b""):
        return given
    if hasattr(raw, "offset"):
        return f"{raw.partition()}/{raw.offset()}/{raw.timestamp()[1]}"
    return raw.message_id or None


class IdempotentMiddleware:
    """Lets subscribers handle a message once for each key: `RabbitBroker(middlewares=[IdempotentMiddleware(...)])`.

    For the brokers RabbitMQ and Kafka (confluent) of FastStream 0.7, or a router of them. The key belongs to the queue,
    or to topic and `group_id`, of the subscriber.

    A duplicate publishes the stored output again, under the message id that it had; without an output it is
    acknowledged. While another worker handles the message, or the store does not answer, it is held, then returned. An
    error of the handler passes through, and the subscriber's policy decides. Rejected are a message without a key, one
    whose key is dead, and one whose body does not fit the handler's parameters.

    Args:
        checker: an instance, or a URL. A transactional one has an AsyncEngine; see `session`.
        group: who uses the keys, such as the service. Part of the key.
        key: a function, or an `async def`, of FastStream's message that returns what identifies it, as str, bytes, int
            or UUID; None: `message_id`.
        codec: stores what handlers return; None: the body as FastStream sends it.
        hold_s: seconds for which a message whose key is in use is held, before it is returned to RabbitMQ; at least a
            quarter of one. It must be delivered fewer times within `lease_s` of the checker than a queue allows. On
            Kafka it is held until the key is free.
        on_expired_lease: what to do if the process died in the handler, with a checker whose effects do not commit with
            the key: see `@consumer`.

    Raises:
        ConfigurationError: invalid options.
    """

    def __init__(
        self,
        checker: AbstractIdempotentChecker | str,
        *,
        group: str,
        key: KeyOf | None = None,
        codec: Codec | None = None,
        hold_s: float = 5.0,
        on_expired_lease: ExpiredLeasePolicy | Literal["retry", "park"] = OnExpiredLease.RETRY,
    ) -> None:
        self.key_of: Final = message_id if key is None else key
        self.codec: Final = codec
        self.hold_s: Final = seconds(hold_s, "hold_s", zero=True)
        self._checker = checker_from_url(checker) if isinstance(checker, str) else checker
        self._group = group
        self._on_expired_lease = on_expired_lease
        self.session_type: Final = async_session(self._checker, "FastStream")
        self._consumers: dict[tuple[str, str], AsyncConsumer] = {}
        self._outside: set[str] = set()
        self._consumer("checked", group)

    def __call__(self, msg: Any, /, *, context: Any) -> BaseMiddleware[Any, Any]:
        """The middleware of one delivery, or of one publication."""
        return _Delivery(msg, context=context, middleware=self)

    def check(self, broker: Any) -> None:
        """Refuse subscribers of a broker that cannot be protected: `app.on_startup(lambda: middleware.check(broker))`.

        Without it, such a subscriber stops when it receives its first message, which returns to the broker. A store
        that does not answer is no reason: messages are held until it does.

        Raises:
            ConfigurationError: one of docs/faststream.md.
            StoreError: the store answers, and cannot be used: it lacks a table, or refuses the user.
        """
        for subscriber in broker.subscribers:
            for call in subscriber.calls:
                route = Route(subscriber, call.handler)
                if self in route.middlewares and not is_fake(call.handler):
                    self._refuse(route)
        with suppress(StoreUnavailableError, StoreBusyError):
            self._checker.ping()

    def consumer_of(self, route: Route, msg: Any) -> AsyncConsumer:
        """The consumer that stands for the subscriber of a message.

        Raises:
            ConfigurationError: it cannot be protected.
        """
        try:
            self._refuse(route, replies=route.has_output(msg))
        except ConfigurationError as error:
            log.error("subscriber_refused", extra={"error": str(error)})  # noqa: TRY400 - the text says all
            raise _RefusedError(str(error)) from error
        subject, group = route.subject(msg.raw_message)
        return self._consumer(subject, f"{self._group}/{group}" if group else self._group)

    def note_outside(self, name: str) -> None:
        """Say once of a consumer that its handler takes no session."""
        if name not in self._outside:
            self._outside.add(name)
            hint = "the handler takes no Depends(session), so its effect commits separately"
            log.warning("handler_outside_transaction", extra={"consumer": name, "hint": hint})

    def _refuse(self, route: Route, *, replies: bool = False) -> None:
        """Refuse what cannot be protected; `replies`: the message wants an answer."""
        why = route.why_not(self.codec, replies=replies)
        if sum(isinstance(each, IdempotentMiddleware) for each in route.middlewares) > 1:
            why = "two IdempotentMiddlewares wait for each other; give one to the broker, or to its routers"
        if why is not None:
            raise ConfigurationError(f"{route.name}: {why}")

    def _consumer(self, subject: str, group: str) -> AsyncConsumer:
        found = self._consumers.get((subject, group))
        if found is None:
            found = self._consumers[subject, group] = consumer_of(
                subject,
                caller(self.session_type, is_async=True),
                checker=self._checker,
                group=group,
                codec=BytesCodec(),
                on_expired_lease=self._on_expired_lease,
            )
            found.check()
        return found


class _Delivery(BaseMiddleware[Any, Any]):
    """What happens to one delivery, and to what its handler returns; or, without a `msg`, to one publication."""

    def __init__(self, msg: Any, /, *, context: Any, middleware: IdempotentMiddleware) -> None:
        super().__init__(msg, context=context)
        self._middleware = middleware
        self._token: str | None = None
        self._content_type: str | None = None

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: Any) -> Any:
        """Handle a message, unless its key is done."""
        handler = handler_in(call_next)
        if handler is None or msg.source_type is SourceType.RESPONSE:
            return await call_next(msg)
        middleware, route = self._middleware, Route(self.context.get_local("handler_"), handler)
        try:
            consumer = middleware.consumer_of(route, msg)
        except _RefusedError:
            if not route.is_acknowledged_first:
                await msg.nack()
            raise
        try:
            found = middleware.key_of(msg)
            key = await found if inspect.isawaitable(found) else found
            message = Message(consumer.subject, id=key)
        except Exception as error:
            raise _rejection(consumer, None, f"key= raised {described(error)}") from error
        run = _Run(middleware, consumer, message, route, call_next, msg)
        process = partial(consumer.process, message, call=run, session=middleware.session_type)
        try:
            result = await repeat_while_held_async(process, route.hold_s(middleware.hold_s), HELD)
        except Answered as answered:
            if answered.answer is None:
                return run.value
            raise answered.answer from answered.answer.__cause__
        known = consumer.key_in(message)
        self._token = None if known is None else known.token
        return self._answer(consumer, message, result, run)

    def _answer(self, consumer: AsyncConsumer, message: Message, result: Result, run: _Run) -> Any:
        """What the handler returned, now or before; else the exception that says what becomes of the message."""
        outcome = result.outcome
        if outcome is Outcome.PROCESSED and run.answer is None:
            return run.value
        consumer.note_duplicate(message, result)
        if outcome is Outcome.DUPLICATE and result.value:
            response, self._content_type = output_in(result.value, self._middleware.codec)
            return response
        if outcome is Outcome.DUPLICATE and run.route.has_output(run.msg) and not result.replayed:
            log.error(
                "output_not_stored", extra={"consumer": consumer.name, "key": str(consumer.key_in(message))}
            )
        if outcome is Outcome.FAILED and result.error is not None:
            raise result.error
        if outcome is Outcome.REJECTED:
            raise _rejection(consumer, message, "no key") from result.error
        if outcome is Outcome.DEAD:
            raise RejectMessage  # logged by the consumer
        if outcome in (Outcome.PROCESSED, Outcome.DUPLICATE):
            raise run.answer or AckMessage()
        raise NackMessage

    async def publish_scope(self, call_next: Callable[[Any], Awaitable[Any]], cmd: Any) -> Any:
        """Give an output the id that it has each time, and a message of the application an id."""
        is_rabbit = hasattr(cmd, "message_options")
        if self._token is not None:
            exchange = cmd.exchange.name if is_rabbit else ""
            identity = str(uuid5(UUID(self._token[:32]), f"{exchange} {cmd.destination}"))
        else:
            identity = str(uuid4())
        if is_rabbit:
            given = {"message_id": identity, "content_type": self._content_type}
            _fill(cmd.message_options, given)
        elif self._token is not None:
            cmd.headers = dict(cmd.headers)
            _fill(cmd.headers, {KEY_HEADER: identity, "content-type": self._content_type})
        return await call_next(cmd)


@dataclass
class _Run:
    """Runs the handler of one delivery, and stores what it returns.

    Attributes:
        value: what it returned.
        answer: that it told FastStream to acknowledge the message.
    """

    middleware: IdempotentMiddleware
    consumer: AsyncConsumer
    message: Message
    route: Route
    call_next: Callable[[Any], Awaitable[Any]]
    msg: Any
    value: Any = None
    answer: AckMessage | None = None

    async def __call__(self, *given: Any) -> bytes:
        """Run the handler; returns what is stored: nothing for one without an output."""
        held = _Session(*given) if given else _Session(None)
        self.answer = None
        token = _sessions.set(held)
        try:
            self.value = await self.call_next(self.msg)
        except AckMessage as answer:
            self.answer = answer
            return b""
        except IgnoredException as answer:
            raise Answered(answer) from None
        except Exception as error:
            if not is_refused(error):
                raise
            rejection = _rejection(self.consumer, self.message, reason_of(error))
            rejection.__cause__ = error
            raise Answered(rejection) from None
        finally:
            _sessions.reset(token)
        if given and not held.is_taken:
            self.middleware.note_outside(self.consumer.name)
        if self.msg.committed in (AckStatus.NACKED, AckStatus.REJECTED):
            raise Answered(None)  # it has settled the message itself
        if not self.route.has_output(self.msg):
            return b""
        return stored_of(ensure_response(self.value), self.route.serializer, self.middleware.codec)


class _RefusedError(ConfigurationError, StopConsume):
    """The subscriber cannot be protected: it stops, and the message is returned to the broker."""

    __str__ = Exception.__str__


def _rejection(consumer: AsyncConsumer, message: Message | None, why: str) -> RejectMessage:
    """What tells FastStream to reject a message; says why in the log."""
    key = None if message is None else consumer.key_in(message)
    about = {"consumer": consumer.name, "key": None if key is None else str(key)}
    log.error("message_rejected", extra={**about, "why": why})
    return RejectMessage()


def _fill(options: dict[str, Any], given: dict[str, str | None]) -> None:
    """Set what is not set."""
    for name, value in given.items():
        if value is not None and not options.get(name):
            options[name] = value
