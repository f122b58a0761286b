"""Observer: the base class for observing messages. Observers: calls all observers of a registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from idempotent.claims import Claim, ClaimRequest, Decision
from idempotent.errors import ConfigurationError, StoreError
from idempotent.forks import generation
from idempotent.logs import EventLog
from idempotent.message import Message
from idempotent.observe.events import Event, OutboxStats, Timed
from idempotent.outcomes import Outcome, Result

log = EventLog(__name__)


class Observer:
    """Derive from it and override methods; by default every method does nothing.

    A method runs in a thread of the message, so it must be quick: `claimed` and `ran` in that of the handler, and in a
    worker the others perhaps in another one; in a thread of the checker if it counts what that notices, such as a lease
    that ended. What it raises is logged and does not affect the message, except KeyboardInterrupt.
    `consumer` is the consumer's name, `subject:group`.
    """

    @property
    def wants_times(self) -> bool:
        """Whether `timed` is to be called from now on: the measuring takes each message some microseconds."""
        return True

    def declared(self, consumer: str) -> None:
        """A consumer was declared, before or after the observer was added: its counts begin at 0."""

    def counted(self, consumer: str, what: Outcome | Event, count: int) -> None:
        """A consumer had `count` messages with this outcome, or events of this kind."""

    def claimed(
        self, consumer: str, message: Message, request: ClaimRequest, answer: Decision | StoreError
    ) -> None:
        """The checker answered a claim, or its store failed. Called before any handler of the group runs."""

    def ran(
        self, consumer: str, messages: Sequence[Message], took_s: float, error: BaseException | None
    ) -> None:
        """A handler returned after `took_s` seconds, or raised `error`. A batch handler has several messages."""

    def around(
        self, consumer: str, messages: Sequence[Message], claim: Claim
    ) -> AbstractContextManager[object] | None:
        """A handler is about to run. Returns what is entered before it, and left when it has returned or raised.

        It is entered in the handler's own thread or task, so the handler sees the context variables that it sets. What
        it returns on leaving does not change what the handler raised. `claim` is that of the first message.
        """

    def timed(self, consumer: str, times: Sequence[Timed]) -> None:
        """What took how long, for a message or a group when it was processed, and when it was settled.

        A claim or a completion that the store did not answer is left out, a handler that raised is not.
        """

    def processed(self, consumer: str, messages: Sequence[Message], results: Sequence[Result]) -> None:
        """A consumer processed these messages, alone or as a group. `results` are in their order; HOLD: not final."""

    def settling(self, message: Message, result: Result) -> None:
        """A worker is about to settle the delivery as this result requires; the broker does not know the result yet."""

    def settled(self, message: Message, result: Result) -> None:
        """A worker has settled the delivery as this result requires."""

    def sending(self, outbox: str, message: Message) -> Mapping[str, str] | None:
        """A message was given to `Outbox.send`. Returns headers to send with it; those that it has itself stay.

        `outbox` is the name of its table.
        """

    def measured(self, outbox: str, stats: OutboxStats) -> None:
        """A relay has measured its outbox, as each does every fifteen seconds.

        `outbox` is the name of its table. Called in the relay's thread, like `relayed`.
        """

    def relayed(self, outbox: str, published: int, refused: int) -> None:
        """A relay gave a batch to a broker, which confirmed `published` messages and refused `refused`."""


class Observers:
    """Calls every observer for each event.

    Args:
        observers: the observers, in the order of the calls.

    Attributes:
        watch_claims: an observer overrides `claimed`; if not, messages skip the call.
        watch_runs: an observer overrides `ran` or `around`; if not, messages skip the calls.
        watch_times: an observer wants to be told times now; if not, nothing is measured.
        watch_results: an observer overrides `processed`; if not, messages skip the call.
        watch_settling: an observer overrides `settling`; if not, messages skip the call.
        watch_settled: an observer overrides `settled`; if not, messages skip the call.
        watch_sending: an observer overrides `sending`; if not, messages skip the call.

    Raises:
        ConfigurationError: no list of observers.
    """

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._all: tuple[Observer, ...] = ()
        self._counting: tuple[Callable[[str, Outcome | Event, int], None], ...] = ()
        self._timing: tuple[Observer, ...] = ()
        self._declared: dict[str, None] = {}
        self.watch_claims = False
        self.watch_runs = False
        self.watch_results = False
        self.watch_settling = False
        self.watch_settled = False
        self.watch_sending = False
        if isinstance(observers, Observer) or not isinstance(observers, Iterable):
            raise ConfigurationError(f"observers takes a list of observers: write [{observers!r}]")
        for observer in observers:
            self.add(observer)

    def add(self, observer: Observer) -> None:
        """Call this observer too from now on.

        Raises:
            ConfigurationError: not an instance of `Observer`.
        """
        if not isinstance(observer, Observer):
            raise ConfigurationError(f"observers are instances of a subclass of Observer, not {observer!r}")
        self._all = (*self._all, observer)
        self._counting = (*self._counting, observer.counted)
        self.watch_claims |= type(observer).claimed is not Observer.claimed
        self.watch_runs |= type(observer).ran is not Observer.ran
        self.watch_runs |= type(observer).around is not Observer.around
        if type(observer).timed is not Observer.timed:
            self._timing = (*self._timing, observer)
        self.watch_results |= type(observer).processed is not Observer.processed
        self.watch_settling |= type(observer).settling is not Observer.settling
        self.watch_settled |= type(observer).settled is not Observer.settled
        self.watch_sending |= type(observer).sending is not Observer.sending
        for consumer in self._declared:
            _tell(observer.declared, consumer)

    def declared(self, consumer: str) -> None:
        if consumer in self._declared:
            return
        self._declared[consumer] = None
        for observer in self._all:
            _tell(observer.declared, consumer)

    def count(self, consumer: str, what: Outcome | Event, count: int = 1) -> None:
        for counted in self._counting:
            try:  # as `_tell`, whose call would cost every message as much as counting
                counted(consumer, what, count)
            except BaseException as error:
                log_failure(error)

    def claimed(
        self, consumer: str, message: Message, request: ClaimRequest, answer: Decision | StoreError
    ) -> None:
        for observer in self._all:
            _tell(observer.claimed, consumer, message, request, answer)

    def ran(
        self, consumer: str, messages: Sequence[Message], took_s: float, error: BaseException | None
    ) -> None:
        for observer in self._all:
            _tell(observer.ran, consumer, messages, took_s, error)

    def around(
        self, consumer: str, messages: Sequence[Message], claim: Claim
    ) -> AbstractContextManager[object]:
        return _Around(self._all, (consumer, messages, claim))

    @property
    def watch_times(self) -> bool:
        for observer in self._timing:  # `any` takes each message three times as long
            try:
                if observer.wants_times:
                    return True
            except BaseException as error:
                log_failure(error)
        return False

    def timed(self, consumer: str, times: Sequence[Timed]) -> None:
        for observer in self._timing:
            try:  # as `count`
                observer.timed(consumer, times)
            except BaseException as error:
                log_failure(error)

    def processed(self, consumer: str, messages: Sequence[Message], results: Sequence[Result]) -> None:
        for observer in self._all:
            _tell(observer.processed, consumer, messages, results)

    def settling(self, message: Message, result: Result) -> None:
        for observer in self._all:
            _tell(observer.settling, message, result)

    def settled(self, message: Message, result: Result) -> None:
        for observer in self._all:
            _tell(observer.settled, message, result)

    def sending(self, outbox: str, message: Message) -> dict[str, str]:
        headers: dict[str, str] = {}
        for observer in self._all:
            try:
                headers.update(observer.sending(outbox, message) or {})
            except BaseException as error:
                log_failure(error)
        return headers

    def measured(self, outbox: str, stats: OutboxStats) -> None:
        for observer in self._all:
            _tell(observer.measured, outbox, stats)

    def relayed(self, outbox: str, published: int, refused: int) -> None:
        for observer in self._all:
            _tell(observer.relayed, outbox, published, refused)


class _Around:
    """What the observers want entered around one run of a handler."""

    __slots__ = ("_entered", "_event", "_observers", "_process")

    def __init__(self, observers: tuple[Observer, ...], event: tuple[str, Sequence[Message], Claim]) -> None:
        self._observers = observers
        self._event = event
        self._process = generation.number
        self._entered: list[AbstractContextManager[object]] = []

    def __enter__(self) -> None:
        for observer in self._observers:
            try:
                wanted = observer.around(*self._event)
                if wanted is not None:
                    wanted.__enter__()
                    self._entered.append(wanted)
            except BaseException as error:
                log_failure(error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if generation.number != self._process:
            return  # a child that the handler forked: the run is its parent's
        for each in reversed(self._entered):
            _tell(each.__exit__, kind, error, trace)


def _tell(method: Callable[..., object], *event: Any) -> None:
    try:
        method(*event)
    except BaseException as error:
        log_failure(error)


def log_failure(error: BaseException) -> None:
    """Log what an observer raised: a broken metric must stop neither the messages nor the worker.

    Not even a CancelledError, such as that of an exporter's own task: an observer awaits nothing, so the cancellation
    of a handler's task does not come here. Ctrl-C may.
    """
    if isinstance(error, KeyboardInterrupt):
        raise error
    log.error("observer_failed", exc_info=error)
