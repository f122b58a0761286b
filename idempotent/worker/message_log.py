"""MessageLog: the log lines about messages. LongMessages: finds those that take very long."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from idempotent.consumer import AnyConsumer
from idempotent.errors import DoomedTransactionError, IdempotentError, StoreError, described
from idempotent.logs import EventLog
from idempotent.message import Message
from idempotent.observe.log_lines import LogThrottle, about_message
from idempotent.outcomes import Action, Outcome, Result
from idempotent.worker.handlers import HandlerPool
from idempotent.worker.holds import MAX_CHECKS, InFlightDelivery

if TYPE_CHECKING:
    from idempotent.adapters.base import Delivery

log = EventLog(__name__)

# Whatever holds its key for longer than this, a person should know.
_LONG_S: Final = 60.0
_MOST_NAMED: Final = 10
# Python needs some calls for each group to make a traceback, and has a thousand.
_MOST_GROUPS: Final = 50
# Kinds of errors of which is known when their traceback was shown.
_MOST_KINDS: Final = 1000
# After so many looks at a store that does not answer, a person should know.
_WAITS_TOO_OFTEN: Final = MAX_CHECKS - 1
# How often to look for a handler that runs long, and how long that is.
_LOOK_EVERY_S: Final = 1.0
_TAKES_LONG_S: Final = 60.0


class MessageLog:
    """Logs failures, dead letters and waits, with what identifies the message. At DEBUG the whole life of each message.

    Args:
        redact: leave the text and the traceback of handlers' exceptions out, because they may quote message bodies. The
            library's own errors are always logged in full.
    """

    def __init__(self, *, redact: bool) -> None:
        self._redact = redact
        self._traces = Traces()
        self._waits: defaultdict[tuple[str, Outcome, bool], LogThrottle] = defaultdict(LogThrottle)

    def received(self, deliveries: Iterable[Delivery], routes: Mapping[str, AnyConsumer]) -> None:
        """Log at DEBUG each delivery that the worker has from the broker. `routes`: its consumers by subject."""
        if log.isEnabledFor(logging.DEBUG):
            for message in (delivery.message for delivery in deliveries):
                about = _names(routes.get(message.subject), message)
                log.debug("message_received", extra={**about, "redelivered": message.redelivered})

    def settled(self, consumer: AnyConsumer | None, message: Message, result: Result) -> None:
        """Log at DEBUG with which result a delivery was settled."""
        if log.isEnabledFor(logging.DEBUG):
            log.debug("message_settled", extra=self._about(consumer, message, result))

    def returned(self, work: InFlightDelivery) -> None:
        """Log at DEBUG a delivery that went back to the broker unprocessed."""
        if log.isEnabledFor(logging.DEBUG):
            log.debug("message_returned", extra=_names(work.consumer, work.delivery.message))

    def not_acknowledged(self, consumer: AnyConsumer | None, message: Message, result: Result) -> None:
        """Log a delivery that was not acknowledged. `consumer`: None if no consumer has its subject.

        The traceback comes with the first attempt, and with the last one, after which the message is dead; of errors of
        one kind and place once a minute, and then with the number of those without.
        """
        error = result.error
        shown = (
            None if self._redact or error is None or isinstance(error, IdempotentError) else _hidden(error)
        )
        about = self._about(consumer, message, result)
        if result.delayed:
            more = self._waits[about["consumer"], result.outcome, False].take()
            if more is not None:
                waits = {"reason": _reason(result), "waited_s": 0.0, "more": more}
                log.info("message_waits", extra={**about, **waits})
            return
        fails = result.action is Action.DELAY
        is_repeated = fails and result.attempt is not None and result.attempt > 1
        event = "message_failed" if fails else "message_dead"
        left_out = None if is_repeated else self._traces.take(event, about["consumer"], shown)
        extra = {**about, "without_traceback": left_out or None}
        trace = None if left_out is None else shown
        if fails:
            log.warning("message_failed", extra=extra, exc_info=trace)
        else:
            log.error("message_dead", extra=extra, exc_info=trace)

    def held(self, work: InFlightDelivery, result: Result) -> None:
        """Log a delivery that waits for its key or its store.

        While a store is down all messages in flight ask again each second: of them one line a minute.
        """
        waited_s = time.monotonic() - work.since
        is_long = waited_s >= _LONG_S * (work.complaints + 1)
        work.complaints += is_long
        store_is_away = result.outcome is Outcome.UNAVAILABLE
        warns = is_long or (store_is_away and work.checks >= _WAITS_TOO_OFTEN)
        if warns and not store_is_away:
            more: int | None = 0
        else:
            more = self._waits[work.consumer.name, result.outcome, warns].take()
        if more is None:
            return
        extra = {
            **self._about(work.consumer, work.delivery.message, result),
            "reason": _reason(result),
            "waited_s": round(waited_s, 1),
            "more": more,
        }
        if warns:
            log.warning("message_waits", extra=extra)
        else:
            log.info("message_waits", extra=extra)

    def takes_long(self, works: Sequence[InFlightDelivery], running_s: float) -> None:
        """Log a message whose handler does not end, or the first of those that a batch handler has together.

        Args:
            works: these.
            running_s: for how long the handler has run.
        """
        work = works[0]
        extra = {
            **_names(work.consumer, work.delivery.message),
            "messages": len(works) if work.consumer.handler.batch else None,
            "running_s": round(running_s, 1),
        }
        log.warning("message_takes_long", extra=extra)

    def drain_timed_out(self, count: int, works: Sequence[InFlightDelivery], *, stores_answer: bool) -> None:
        """Log that `count` deliveries are not finished at the end of the drain.

        Args:
            count: how many.
            works: those that are not at their end. Named are those whose handlers run; if none does, those whose
                handlers have ended and wait for their store.
            stores_answer: for the hint.
        """
        now = time.monotonic()
        running = [work for work in works if work.running_s(now) is not None]
        named = running or [work for work in works if work.began is not None]
        if not stores_answer:
            hint = "a store does not answer, so these effects may be repeated"
        elif named:
            hint = (
                "a handler that takes longer than drain_timeout_s never finishes where workers stop that often: "
                "raise it"
            )
        else:
            hint = "no handler runs: the messages wait for their keys"
        extra = {
            "running": len(named),
            "keys": [work.key for work in named[:_MOST_NAMED]],
            "waiting": max(count - len(named), 0),
            "hint": hint,
        }
        log.error("drain_timed_out", extra=extra)

    def crashed(self, work: InFlightDelivery, error: BaseException) -> None:
        """Log the BaseException that stops the worker."""
        extra = self._about(work.consumer, work.delivery.message, Result(Outcome.FAILED, error=error))
        log.error("handler_crashed", extra=extra, exc_info=None if self._redact else _hidden(error))

    def _about(self, consumer: AnyConsumer | None, message: Message, result: Result) -> dict[str, Any]:
        return {
            **_names(consumer, message),
            "attempt": result.attempt,
            "outcome": result.outcome.value,
            "error": self._text(result.error),
            "retry_after_s": result.retry_after_s,
        }

    def _text(self, error: BaseException | None) -> str | None:
        if error is None:
            return None
        # A DoomedTransactionError quotes what the database answered to the handler.
        if self._redact and (
            not isinstance(error, IdempotentError) or isinstance(error, DoomedTransactionError)
        ):
            return type(error).__name__
        return described(error)


class Traces:
    """Decides which lines have a traceback: a fault that a thousand messages meet is shown once a minute.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._throttles: dict[tuple[Any, ...], LogThrottle] = {}

    def take(self, event: str, consumer: str, error: BaseException | None) -> int | None:
        """How many lines about such errors had no traceback since the last one that had; None: this one has none."""
        if error is None:
            return None
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = None if trace is None else (trace.tb_frame.f_code, trace.tb_lineno)
        kind = (event, consumer, type(error), place)
        if kind not in self._throttles and len(self._throttles) >= _MOST_KINDS:
            self._throttles.clear()
        return self._throttles.setdefault(kind, LogThrottle(self._clock)).take()


def _names(consumer: AnyConsumer | None, message: Message) -> dict[str, Any]:
    if consumer is None:
        return {"consumer": message.subject, "key": None, **about_message(message)}
    return consumer.binding.about(message)


def _reason(result: Result) -> str:
    """Why a message waits."""
    if result.outcome is not Outcome.UNAVAILABLE:
        return result.reason or "another delivery has its key"
    if isinstance(result.error, StoreError):
        return "the store did not answer, or refused: see error"
    return "its transaction or its effect is in doubt: see error"


def _hidden(error: BaseException) -> BaseException | None:
    """The exception, whose traceback shows no parameters of SQL statements: they are what messages contain.

    None: its groups are nested too deep for a traceback.
    """
    for cause, depth in _shown_with(error):
        if depth > _MOST_GROUPS:
            return None
        if getattr(cause, "hide_parameters", None) is False:
            cause.hide_parameters = True  # type: ignore[attr-defined] # SQLAlchemy's StatementError has it
    return error


def _shown_with(error: BaseException) -> Iterator[tuple[BaseException, int]]:
    """The exception and all others that its traceback shows, which may be a cycle, with the number of its groups."""
    seen: set[int] = set()
    links: list[tuple[BaseException | None, int]] = [(error, 0)]
    while links:
        link, depth = links.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            links += [(link.__cause__, depth), (link.__context__, depth)]
            if isinstance(link, BaseExceptionGroup):
                links += [(member, depth + 1) for member in link.exceptions]
            yield link, depth


class LongMessages:
    """Logs a message whose handler runs for a minute, and then each time that has doubled.

    Args:
        pool: runs the handlers.
        messages: logs the messages.

    Attributes:
        count: handlers that took a minute or longer at the last `look`. A batch handler counts as one.
    """

    def __init__(self, pool: HandlerPool, messages: MessageLog) -> None:
        """Look at nothing yet."""
        self.count = 0
        self._pool = pool
        self._log = messages
        self._next = 0.0

    def look(self) -> None:
        """Look at what runs, once a second at most."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _LOOK_EVERY_S
            self.count = sum(self._is_long(works, now) for works in self._by_handler())

    def _by_handler(self) -> Iterator[list[InFlightDelivery]]:
        """The works that each handler has: one, or those of a batch handler."""
        batches: defaultdict[tuple[AnyConsumer, float], list[InFlightDelivery]] = defaultdict(list)
        for work in self._pool.running:
            began = work.began
            if began is None or not work.consumer.handler.batch:
                yield [work]
            else:
                batches[work.consumer, began].append(work)
        yield from batches.values()

    def _is_long(self, works: list[InFlightDelivery], now: float) -> bool:
        first = works[0]
        running_s = first.running_s(now)
        if running_s is None or running_s < _TAKES_LONG_S:
            return False
        doubled = 1 + int(math.log2(running_s / _TAKES_LONG_S))
        if doubled > first.warnings:
            first.warnings = doubled
            self._log.takes_long(works, running_s)
        return True
