"""FastStream: `IdempotentMiddleware`, behind which a subscriber handles a message once for each key.

Long because an output, as it is stored and sent again, is here too: only this file may import FastStream.
"""

# ruff: noqa: SLF001 - some of what a plug-in must know has no public name in FastStream

from __future__ import annotations

import inspect
import json
import math
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Literal, NoReturn, TypeAlias, cast
from uuid import UUID, uuid4, uuid5

from idempotent.adapters.copies import KEY_HEADER
from idempotent.checkers import checker_from_url
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.transactions import TransactionHooks
from idempotent.codecs import BytesCodec, Codec, JsonCodec
from idempotent.consumer import AsyncConsumer
from idempotent.errors import ConfigurationError, MissingExtraError, described
from idempotent.function import Id
from idempotent.logs import EventLog
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.policy import OnExpiredLease
from idempotent.processing.binding import RESULT_LIMIT
from idempotent.processing.handler import Handler
from idempotent.processing.holding import HELD, held_async
from idempotent.processing.options import ExpiredLeasePolicy
from idempotent.registry import default_registry
from idempotent.validation import seconds

try:
    from faststream import AckPolicy, BaseMiddleware, Response
    from faststream.exceptions import (
        AckMessage,
        IgnoredException,
        NackMessage,
        RejectMessage,
        StopConsume,
    )
    from faststream.message import AckStatus, SourceType, encode_message
    from faststream.response import ensure_response
except ImportError as error:
    raise MissingExtraError("faststream", "faststream") from error

__all__ = ["IdempotentMiddleware", "message_id", "session"]

KeyOf: TypeAlias = "Callable[[Any], Id | Awaitable[Id | None] | None]"

log = EventLog(__name__)

# What FastDepends calls to cast the body to the parameters of a handler, and FastStream to decode it.
_REFUSING: Final = {"__call__", "_try_pydantic", "_try_msgspec"}
_HEAD_BYTES: Final = 100


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
        self.session_type: Final = _session_type(self._checker)
        self._consumers: dict[tuple[str, str], AsyncConsumer] = {}
        self._outside: set[str] = set()
        self._consumer("checked", group)

    def __call__(self, msg: Any, /, *, context: Any) -> BaseMiddleware[Any, Any]:
        """The middleware of one delivery, or of one publication."""
        return _Delivery(msg, context=context, middleware=self)

    def check(self, broker: Any) -> None:
        """Refuse subscribers of a broker that cannot be protected: `app.on_startup(lambda: middleware.check(broker))`.

        Without it, such a subscriber stops when it receives its first message, which returns to the broker.

        Raises:
            ConfigurationError: one of docs/faststream.md.
        """
        for subscriber in broker.subscribers:
            for call in subscriber.calls:
                route = _Route(subscriber, call.handler)
                if self in route.middlewares and not _is_fake(call.handler):
                    route.refuse(self.codec)

    def consumer_of(self, route: _Route, msg: Any) -> AsyncConsumer:
        """The consumer that stands for the subscriber of a message.

        Raises:
            ConfigurationError: it cannot be protected.
        """
        try:
            route.refuse(self.codec, replies=route.has_output(msg))
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

    def _consumer(self, subject: str, group: str) -> AsyncConsumer:
        found = self._consumers.get((subject, group))
        if found is None:
            found = self._consumers[subject, group] = cast(
                "AsyncConsumer",
                default_registry.consumer(
                    subject,
                    checker=self._checker,
                    group=group,
                    codec=BytesCodec(),
                    max_attempts=None,
                    on_expired_lease=self._on_expired_lease,
                    registered=False,
                )(cast("Any", Handler(_not_called, self.session_type, batch=False, is_async=True))),
            )
            found.check()
        return found


class _Route:
    """A subscriber and one of its handlers: all that FastStream does not tell in its public names.

    Attributes:
        middlewares: those that its messages pass.
        publishers: of what the handler returns.
        serializer: with which FastStream encodes that.
    """

    def __init__(self, subscriber: Any, handler: Any) -> None:
        config = subscriber._outer_config
        self.middlewares: Final = config.broker_middlewares
        self.publishers: Final = handler._publishers
        self.serializer: Final = config.fd_config._serializer
        self._subscriber = subscriber
        self._config = config

    def has_output(self, msg: Any) -> bool:
        """Whether FastStream publishes what the handler returns for a message."""
        return bool(self.publishers or (msg.reply_to and not self._subscriber._no_reply))

    def subject(self, raw: Any) -> tuple[str, str | None]:
        """Queue or topic, and the group of its readers. Not the routing key: that of two queues may be the same."""
        if self._library == "rabbit":
            return self._subscriber.queue.add_prefix(self._config.prefix).name, None
        return raw.topic(), self._subscriber.group_id

    def hold_s(self, given_s: float) -> float:
        """How long a message is held whose key is in use, in seconds.

        Kafka takes no message back: FastStream seeks to it, and the next acknowledgement of another partition commits
        past it, so that a restart would lose it.
        """
        return math.inf if self._library == "confluent" else given_s

    @property
    def _library(self) -> str | None:
        """`rabbit` or `confluent`; None: another one."""
        homes = (each.__module__.split(".") for each in type(self._subscriber).__mro__)
        names = {home[1] for home in homes if home[0] == "faststream" and len(home) > 1}
        return next(iter(names & {"rabbit", "confluent"}), None)

    @property
    def is_acknowledged_first(self) -> bool:
        """Nothing can be returned to the broker."""
        return self._subscriber.ack_policy is AckPolicy.ACK_FIRST

    def refuse(self, codec: Codec | None, *, replies: bool = False) -> None:
        """Refuse what cannot be protected.

        Args:
            codec: of outputs; None: FastStream's.
            replies: the message wants an answer.

        Raises:
            ConfigurationError: it cannot.
        """
        why = self._why_not(codec, replies=replies)
        if why is not None:
            raise ConfigurationError(f"{self._subscriber.specification.call_name}: {why}")

    def _why_not(self, codec: Codec | None, *, replies: bool) -> str | None:
        if self._library is None:
            return "only RabbitMQ and Kafka (confluent) are supported"
        if self.is_acknowledged_first:
            return (
                "AckPolicy.ACK_FIRST (the default for Kafka) acknowledges a message before it is handled, and loses it "
                "with the process; give ack_policy=AckPolicy.NACK_ON_ERROR or another one"
            )
        if self._subscriber.ack_policy is AckPolicy.MANUAL:
            return (
                "with AckPolicy.MANUAL nobody settles duplicates, whose handler does not run; give another policy. A "
                "handler may still `await message.ack()`"
            )
        if getattr(self._subscriber._decoder, "__name__", "") == "decode_batch":
            return "a batch has one acknowledgement for many keys; write a subscriber without batch=True"
        if sum(isinstance(each, IdempotentMiddleware) for each in self.middlewares) > 1:
            return "two IdempotentMiddlewares wait for each other; give one to the broker, or to its routers"
        if any(type(each).__name__ == "BatchPublisher" for each in self.publishers):
            return "the outputs of a batch publisher cannot be stored; write a publisher without batch=True"
        if (self.publishers or replies) and codec is None and self._config.broker_codec is not None:
            return (
                "outputs are stored as FastStream encodes them, and this broker has a codec of its own; give codec= to "
                "IdempotentMiddleware, too"
            )
        return None


class _Delivery(BaseMiddleware[Any, Any]):
    """What happens to one delivery, and to what its handler returns; or, without a `msg`, to one publication."""

    def __init__(self, msg: Any, /, *, context: Any, middleware: IdempotentMiddleware) -> None:
        super().__init__(msg, context=context)
        self._middleware = middleware
        self._token: str | None = None
        self._content_type: str | None = None

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: Any) -> Any:
        """Handle a message, unless its key is done."""
        handler = _handler_in(call_next)
        if handler is None or msg.source_type is SourceType.RESPONSE:
            return await call_next(msg)
        route = _Route(self.context.get_local("handler_"), handler)
        try:
            consumer = self._middleware.consumer_of(route, msg)
        except _RefusedError:
            if not route.is_acknowledged_first:
                await msg.nack()
            raise
        try:
            found = self._middleware.key_of(msg)
            key = await found if inspect.isawaitable(found) else found
            message = Message(consumer.subject, id=key)
        except Exception as error:
            _reject(consumer, None, f"key= raised {described(error)}", error)
        run = _Run(self._middleware, consumer, route, partial(call_next, msg), msg)
        try:
            result = await self._result_of(consumer, message, run, route.hold_s(self._middleware.hold_s))
        except _Answered as answered:
            if answered.refusal is not None:
                _reject(consumer, message, answered.refusal, answered.answer)
            if answered.answer is not None:
                raise answered.answer from None
            return answered.value
        known = consumer.key_in(message)
        self._token = None if known is None else known.token
        return self._answer(consumer, message, result, run)

    async def _result_of(self, consumer: AsyncConsumer, message: Message, run: _Run, hold_s: float) -> Result:
        """The result of a message, which is held while another worker has its key."""
        process = partial(consumer.process, message, call=run, session=self._middleware.session_type)
        return await held_async(await process(), process, hold_s, HELD)

    def _answer(self, consumer: AsyncConsumer, message: Message, result: Result, run: _Run) -> Any:
        """What the handler returned, now or before; else the exception that says what becomes of the message."""
        outcome = result.outcome
        if outcome is Outcome.PROCESSED and run.answer is None:
            return run.value
        if outcome is Outcome.DUPLICATE and result.value:
            response, self._content_type = _output_in(result.value, self._middleware.codec)
            return response
        if outcome is Outcome.DUPLICATE and run.has_output and not result.replayed:
            log.error(
                "output_not_stored", extra={"consumer": consumer.name, "key": str(consumer.key_in(message))}
            )
        if outcome is Outcome.FAILED and result.error is not None:
            raise result.error
        if outcome is Outcome.REJECTED:
            _reject(consumer, message, "no key", result.error)
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


class _Run:
    """Runs the handler of one delivery, and stores what it returns.

    Attributes:
        has_output: what it returns is published.
        value: what it returned.
        answer: that it told FastStream to acknowledge the message.
    """

    def __init__(
        self,
        middleware: IdempotentMiddleware,
        consumer: AsyncConsumer,
        route: _Route,
        call: Callable[[], Awaitable[Any]],
        msg: Any,
    ) -> None:
        self.has_output: Final = route.has_output(msg)
        self.value: Any = None
        self.answer: AckMessage | None = None
        self._middleware = middleware
        self._consumer = consumer
        self._route = route
        self._call = call
        self._msg = msg

    async def __call__(self, *given: Any) -> bytes:
        """Run the handler; returns what is stored: nothing for one without an output."""
        held = _Session(*given) if given else _Session(None)
        self.answer = None
        token = _sessions.set(held)
        try:
            self.value = await self._call()
        except AckMessage as answer:
            self.answer = answer
            return b""
        except IgnoredException as answer:
            raise _Answered(answer) from None
        except Exception as error:
            if not _is_refused(error):
                raise
            raise _Answered(error, refusal=_reason(error)) from None
        finally:
            _sessions.reset(token)
        if given and not held.is_taken:
            self._middleware.note_outside(self._consumer.name)
        if self._msg.committed in (AckStatus.NACKED, AckStatus.REJECTED):
            raise _Answered(None, value=self.value)
        if not self.has_output:
            return b""
        stored = _stored(ensure_response(self.value), self._route.serializer, self._middleware.codec)
        if len(stored) + _HEAD_BYTES > RESULT_LIMIT:
            raise ConfigurationError(
                f"the output has {len(stored)} bytes, and {RESULT_LIMIT} can be stored: publish it through the outbox"
            )
        return stored


class _RefusedError(ConfigurationError, StopConsume):
    """The subscriber cannot be protected: it stops, and the message is returned to the broker."""

    __str__ = Exception.__str__


class _Answered(BaseException):
    """The handler did not do its work, and this is no failure: its key is free, without an attempt.

    Attributes:
        answer: what it told FastStream, or how FastStream refused the body; None: it has settled the message itself.
        value: what it returned then.
        refusal: why the body was refused; None: it was not.
    """

    def __init__(
        self, answer: BaseException | None, *, value: Any = None, refusal: str | None = None
    ) -> None:
        super().__init__(answer)
        self.answer: Final = answer
        self.value: Final = value
        self.refusal: Final = refusal


def _reject(
    consumer: AsyncConsumer, message: Message | None, why: str, error: BaseException | None
) -> NoReturn:
    key = None if message is None else consumer.key_in(message)
    about = {"consumer": consumer.name, "key": None if key is None else str(key)}
    log.error("message_rejected", extra={**about, "why": why})
    raise RejectMessage from error


def _handler_in(call_next: Any) -> Any:
    """The handler behind a middleware and those after it; None: there is none to protect, as in `get_one()`."""
    while isinstance(call_next, partial):
        call_next = call_next.args[0]
    owner = getattr(call_next, "__self__", None)
    return owner if hasattr(owner, "_publishers") and not _is_fake(owner) else None


def _is_fake(handler: Any) -> bool:
    """Whether a test broker has it to see what is published."""
    return str(getattr(handler._declared_call, "__module__", "")).startswith("faststream._internal.testing.")


def _frames(error: BaseException) -> Iterator[tuple[str, str]]:
    """Module and function of each call that the exception has passed through, the outermost first."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        yield frame.f_globals.get("__name__", ""), frame.f_code.co_name


def _is_refused(error: Exception) -> bool:
    """Whether the body could not be decoded, or did not fit the parameters: the handler has not begun."""
    frames = list(_frames(error))
    if ("faststream.message.message", "decode") in frames:
        return isinstance(error, ValueError)  # else a decoder may have asked a server in vain
    module, name = next(
        each for each in reversed(frames) if not each[0].startswith(("pydantic", "contextlib"))
    )
    casts = module.startswith("fast_depends.") and name in _REFUSING
    unpacks = module.startswith("faststream.") and name == "decode_wrapper"
    return (casts and "response" not in [name for _, name in frames]) or unpacks


def _reason(error: Exception) -> str:
    """Why a body was refused, without what is in it."""
    errors = getattr(getattr(error, "original_error", error), "errors", None)
    if not callable(errors):
        return type(error).__name__
    found = errors(include_input=False, include_url=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found)


def _stored(response: Response, serializer: Any, codec: Codec | None) -> bytes:
    """What is stored of an output: a line of JSON, then the body."""
    kind: str | None = None
    try:
        if codec is None:
            body, kind = encode_message(response.body, serializer)
        else:
            body = codec.encode(response.body)
        key = getattr(response, "key", None)
        exchange = getattr(response, "exchange", None)
        head = {
            "class": type(response).__name__,
            "content_type": kind,
            "is_none": response.body is None,
            "headers": response.headers,
            "correlation_id": response.correlation_id,
            "key": [key.hex()] if isinstance(key, bytes) else key,
            "timestamp_ms": getattr(response, "timestamp_ms", None),
            "exchange": None if exchange is None else exchange.name,
            "options": {
                **getattr(response, "publish_options", {}),
                **getattr(response, "message_options", {}),
            },
        }
        return JsonCodec().encode(head) + b"\n" + body
    except Exception as error:
        raise ConfigurationError(
            f"an output that cannot be stored would be lost with a process that dies: {described(error)}; "
            "return plain values, dataclasses or pydantic models, or give codec="
        ) from error


def _output_in(stored: bytes, codec: Codec | None) -> tuple[Response, str | None]:
    """An output again, and its content type."""
    line, _, data = stored.partition(b"\n")
    head = json.loads(line)
    body: Any = data if codec is None else codec.decode(data)
    body = None if head["is_none"] else body
    headers, correlation_id = head["headers"], head["correlation_id"]
    if head["class"] == "RabbitResponse":
        from faststream.rabbit import RabbitResponse

        options = {"headers": headers, "correlation_id": correlation_id, **head["options"]}
        return RabbitResponse(body, exchange=head["exchange"], **options), head["content_type"]
    if head["class"] == "KafkaResponse":
        from faststream.confluent import KafkaResponse

        key = bytes.fromhex(head["key"][0]) if isinstance(head["key"], list) else head["key"]
        options = {"headers": headers, "correlation_id": correlation_id, "timestamp_ms": head["timestamp_ms"]}
        return KafkaResponse(body, key=key, **options), head["content_type"]
    return Response(body, headers=headers, correlation_id=correlation_id), head["content_type"]


def _fill(options: dict[str, Any], given: dict[str, str | None]) -> None:
    """Set what is not set."""
    for name, value in given.items():
        if value is not None and not options.get(name):
            options[name] = value


def _session_type(checker: AbstractIdempotentChecker) -> type | None:
    """AsyncSession, if the checker has a transaction to share."""
    if not isinstance(checker, TransactionHooks):
        return None
    if not checker.is_async:
        raise ConfigurationError(
            f"FastStream is asynchronous: give the {type(checker).__name__} an AsyncEngine, such as "
            "create_async_engine('postgresql+psycopg://...')"
        )
    from sqlalchemy.ext.asyncio import AsyncSession

    return AsyncSession


async def _not_called(_: Message, *__: Any) -> None:
    raise AssertionError("each call brings its own function")
