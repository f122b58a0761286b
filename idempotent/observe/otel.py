"""OpenTelemetry: an observer that makes spans and metrics of messages, and sends the trace on through an outbox."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import TracebackType
from typing import Any, Final

from idempotent.claims import Claim
from idempotent.errors import MissingExtraError
from idempotent.keys import NO_KEY
from idempotent.message import Message, Position
from idempotent.observe import conventions as names
from idempotent.observe.observers import Observer, log_failure
from idempotent.outcomes import HOLD, Outcome, Result

try:
    from opentelemetry import context, metrics, propagate, trace
    from opentelemetry.propagators.textmap import Getter
    from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, StatusCode
except ImportError as error:
    raise MissingExtraError("opentelemetry-api", "otel") from error

_SCOPE: Final = "idempotent"
_NANOSECONDS: Final = 1_000_000_000
_FAILURES: Final = frozenset({Outcome.FAILED, Outcome.DEAD, Outcome.REJECTED, Outcome.UNAVAILABLE})
# A worker settles a message soon after its result is known. One that somebody else settles, such as a loop of the
# application's own, would stay for ever.
_MOST_UNSETTLED: Final = 10_000


class OpenTelemetry(Observer):
    """Spans `process {subject}`, `settle {subject}` and `send {subject}`, and metrics of what is processed.

    Add it to a registry, `registry.observers.add(OpenTelemetry())`, and give it to each outbox,
    `Outbox(..., observers=[OpenTelemetry()])`. The span of a message is the current one while its handler runs, and so
    the parent of the handler's own spans. Each span links to the span that sent its message, which the headers of the
    message name, as `traceparent` does; it is its parent too if the span accounts for one message and is in no other.

    Args:
        tracer_provider: makes the spans; None: the global one.
        meter_provider: makes the metrics; None: the global one.
    """

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._made: Final = _Instruments(tracer_provider, meter_provider)
        self._unsettled: Final[OrderedDict[int, tuple[str | bytes | None, SpanContext]]] = OrderedDict()
        self._settling: Final[dict[int, int]] = {}

    def around(self, consumer: str, messages: Sequence[Message], claim: Claim) -> _Run:
        """The span of a handler's run, which is the current one in it."""
        return _Run(self._made, consumer, messages, claim)

    def processed(self, consumer: str, messages: Sequence[Message], results: Sequence[Result]) -> None:
        """End the spans of the runs. What is final without a run, such as a duplicate, gets a span without duration."""
        for message, result in zip(messages, results, strict=True):
            run = self._made.runs.pop((consumer, id(message)), None)
            if run is None:
                if result.action is HOLD:
                    continue  # it is checked again, perhaps many times
                run = _Run(self._made, consumer, (message,), None)
            run.end(result)
            if result.action is HOLD:
                continue
            self._made.consumed.add(1, run.failure | run.series)
            if message.from_broker:
                self._unsettled[id(message)] = message.id, run.span.get_span_context()
                while len(self._unsettled) > _MOST_UNSETTLED:
                    self._unsettled.popitem(last=False)

    def settling(self, message: Message, result: Result) -> None:  # noqa: ARG002
        """Note when the settlement began."""
        self._settling[id(message)] = time.time_ns()

    def settled(self, message: Message, result: Result) -> None:
        """Make the span of a settlement, in that of the message."""
        began = self._settling.pop(id(message), None)
        message_id, parent = self._unsettled.pop(id(message), (None, None))
        attributes = _about(names.SETTLE, message) | {names.OUTCOME: result.outcome.value}
        within = None
        if parent is not None and message_id == message.id:
            within = trace.set_span_in_context(NonRecordingSpan(parent), context.Context())
        _end(
            self._made.start(
                names.SETTLE, (message,), attributes, kind=SpanKind.CLIENT, within=within, began=began
            )
        )

    def sending(self, outbox: str, message: Message) -> Mapping[str, str]:  # noqa: ARG002
        """Make the span of a message that an outbox takes, and name it in the headers, unless they name another one."""
        here, attributes = context.get_current(), _about(names.SEND, message)
        given = _sender(message, context.Context())[1]
        kind = SpanKind.PRODUCER if given is None else SpanKind.CLIENT
        span = self._made.start(names.SEND, (message,), attributes, kind=kind, within=here)
        _end(span)
        headers: dict[str, str] = {}
        if given is None:
            propagate.inject(headers, trace.set_span_in_context(span, here))
        return headers


class _Instruments:
    """What makes spans and metrics.

    Args:
        tracer_provider: makes the spans; None: the global one.
        meter_provider: makes the metrics; None: the global one.

    Attributes:
        took: how long handlers ran.
        consumed: counts deliveries.
        runs: whose result is not known yet, by consumer and message: a handler may give its message to another one.
    """

    def __init__(
        self, tracer_provider: trace.TracerProvider | None, meter_provider: metrics.MeterProvider | None
    ) -> None:
        self._tracer: Final = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
        self.took: Final = meter.create_histogram(
            names.PROCESS_DURATION,
            unit="s",
            description="Duration of processing operation.",
            explicit_bucket_boundaries_advisory=names.DURATION_BOUNDARIES,
        )
        self.consumed: Final = meter.create_counter(
            names.CONSUMED_MESSAGES,
            unit="{message}",
            description="Number of messages that were delivered to the application.",
        )
        self.runs: Final[dict[tuple[str, int], _Run]] = {}

    def start(
        self,
        operation: str,
        messages: Sequence[Message],
        attributes: Mapping[str, Any],
        *,
        kind: SpanKind,
        within: context.Context | None = None,
        began: int | None = None,
    ) -> Span:
        """Begin a span.

        Args:
            operation: the first word of its name.
            messages: that it accounts for.
            attributes: its attributes.
            kind: its kind.
            within: whose span is its parent; None: the current one, or else the sender of a single message.
            began: when it began, in nanoseconds; None: now.
        """
        here = context.get_current() if within is None else within
        # One that has ended does not count: such as that in which a service once started its worker.
        alone = within is None and len(messages) == 1 and not trace.get_current_span(here).is_recording()
        parent, links = here, []
        for message in messages:
            sent, sender = _sender(message, here if alone else context.Context())
            if sender is None:
                continue
            links.append(Link(sender, None if len(messages) == 1 else _id_of(message)))
            parent = sent if alone else here
        return self._tracer.start_span(
            f"{operation} {messages[0].subject}",
            parent,
            kind,
            attributes,
            links,
            start_time=began,
        )


class _Run:
    """One run of a handler, or the result of a message that did not run.

    Args:
        made: makes its span.
        consumer: the consumer's name.
        messages: what the handler is given.
        claim: of the first message; None: nothing runs.

    Attributes:
        span: ends with `end`.
        series: the attributes of the metrics.
        failure: those that say with what it failed; empty: it did not.
    """

    def __init__(
        self, made: _Instruments, consumer: str, messages: Sequence[Message], claim: Claim | None
    ) -> None:
        self._made = made
        self._keys = [(consumer, id(message)) for message in messages]
        self._messages = messages  # kept: another one would get the id() of one that is gone
        self._error: BaseException | None = None
        self._ran = claim is not None
        self._is_over = False
        for key in self._keys:
            before = made.runs.pop(key, None)
            if before is not None:  # its transaction was undone, and the message runs again
                before.end(None)
        attributes = _about(names.PROCESS, messages[0])
        attributes[names.GROUP] = consumer.rpartition(":")[2]
        self.series: dict[str, Any] = {
            name: attributes[name]
            for name in (names.SYSTEM, names.OPERATION_NAME, names.DESTINATION, names.GROUP)
        }
        self.failure: dict[str, Any] = {}
        if len(messages) > 1:
            attributes.pop(names.MESSAGE_ID, None)
            attributes[names.BATCH_COUNT] = len(messages)
        elif claim is not None:
            attributes |= _about_claim(claim)
        self._began = self._ended = time.time_ns()
        self.span: Final = made.start(
            names.PROCESS, messages, attributes, kind=SpanKind.CONSUMER, began=self._began
        )

    def __enter__(self) -> None:
        self._made.runs.update(dict.fromkeys(self._keys, self))
        self._context = trace.set_span_in_context(self.span)
        self._token = context.attach(self._context)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended = time.time_ns()
        self._error = error
        if context.get_current() is self._context:  # else it is closed outside its task, which is gone
            context.detach(self._token)
        if error is not None and not isinstance(error, Exception):
            for key in self._keys:
                self._made.runs.pop(key, None)
            self.end(None)

    def end(self, result: Result | None) -> None:
        """End the span as of the end of the handler, unless it has ended.

        Args:
            result: of the message; None: it has none, because the run was undone or interrupted.
        """
        if self._is_over:
            return
        self._is_over = True
        span, error = self.span, self._error
        if result is not None:
            outcome = result.outcome.value
            error = result.error if result.outcome in _FAILURES else None
            if result.attempt is not None:
                span.set_attribute(names.ATTEMPT, result.attempt)
        elif error is None or isinstance(error, Exception):
            outcome = names.UNDONE
        else:
            outcome = names.INTERRUPTED
        span.set_attribute(names.OUTCOME, outcome)
        if error is not None:
            self.failure = {names.ERROR_TYPE: _type_of(error)}
            span.set_attributes(self.failure)
            # Without the error's text, which may quote the message: it is in the log.
            span.set_status(StatusCode.ERROR)
        _end(span, self._ended)
        if self._ran:
            self._made.took.record((self._ended - self._began) / _NANOSECONDS, self.series | self.failure)


class _Headers(Getter[Mapping[Any, Any]]):
    """Reads the headers of a message, which may have bytes where others have texts."""

    def get(self, carrier: Mapping[Any, Any], key: str) -> list[str] | None:
        value = carrier.get(key)
        if isinstance(value, bytes):
            value = value.decode("ascii", "replace")
        return [value] if isinstance(value, str) else None

    def keys(self, carrier: Mapping[Any, Any]) -> list[str]:
        return [name for name in carrier if isinstance(name, str)]


_HEADERS: Final = _Headers()


def _end(span: Span, at_ns: int | None = None) -> None:
    """End a span. An exporter that fails does so for this one alone: others of its group end too."""
    try:
        span.end(at_ns)
    except BaseException as error:
        log_failure(error)


def _sender(message: Message, here: context.Context) -> tuple[context.Context, SpanContext | None]:
    """A context with what the headers of a message carry, and the span that sent it; None: they name no span.

    Args:
        message: the message.
        here: the context to add to.
    """
    if not message.headers:
        return here, None
    sent = propagate.extract(message.headers, here, _HEADERS)
    sender = trace.get_current_span(sent).get_span_context()
    is_named = sender.is_valid and sender != trace.get_current_span(here).get_span_context()
    return sent, sender if is_named else None


def _about(operation: str, message: Message) -> dict[str, Any]:
    attributes = {
        names.SYSTEM: _system_of(type(message.raw).__module__),
        names.OPERATION_NAME: operation,
        names.OPERATION_TYPE: operation,
        names.DESTINATION: message.subject,
        **_id_of(message),
    }
    if isinstance(message.position, Position):
        attributes[names.PARTITION] = str(message.position.partition)
    return attributes


def _id_of(message: Message) -> dict[str, Any]:
    if message.id is None:
        return {}
    text = (
        message.id.decode("utf-8", "backslashreplace") if isinstance(message.id, bytes) else str(message.id)
    )
    return {names.MESSAGE_ID: text}


def _about_claim(claim: Claim) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    if claim.key is not NO_KEY:
        attributes[names.KEY] = str(claim.key)
    if claim.fence:
        attributes[names.FENCE] = claim.fence
    if claim.attempt is not None:
        attributes[names.ATTEMPT] = claim.attempt
    return attributes


@lru_cache
def _system_of(module: str) -> str:
    """The broker from whose client the original of a message is, by the module of its class."""
    return next((names.SYSTEMS[each] for each in module.split(".") if each in names.SYSTEMS), names.NO_BROKER)


def _type_of(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
