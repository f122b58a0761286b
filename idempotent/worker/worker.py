"""Worker: adapter -> checker -> handler -> checker -> settle, until it is stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.consumer import AnyConsumer
from idempotent.errors import AdapterError, ConfigurationError, StoreBusyError
from idempotent.logs import EventLog
from idempotent.message import Message
from idempotent.observe.counting import stores
from idempotent.observe.log_lines import about_message
from idempotent.outcomes import Action, Outcome, Result
from idempotent.processing.results import STORE_RETRY_S
from idempotent.registry import Registry
from idempotent.validation import flag, seconds, seconds_or_none, whole
from idempotent.worker import options
from idempotent.worker.capacity import Capacity
from idempotent.worker.handlers import Done, HandlerPool, LoopPlace
from idempotent.worker.health import Health, InHand
from idempotent.worker.health_file import CONNECTING, READY, STORE, WAITING, checked_health_file
from idempotent.worker.holds import Holds, InFlightDelivery
from idempotent.worker.message_log import LongMessages, MessageLog
from idempotent.worker.options import check_dead_letters, routes, unknown_subject
from idempotent.worker.pause_watch import PauseWatch
from idempotent.worker.process import in_thread, on_stop_signal, relaxed_python_gc
from idempotent.worker.settling import Settling, WorkerSummary
from idempotent.worker.store_watch import ExpiredKeys, StoreSurvey, StoreWatch

if TYPE_CHECKING:
    from idempotent.adapters.base import Adapter, Delivery

log = EventLog(__name__)

# How long `receive` may wait: with handlers running (where the adapter cannot be woken), and without.
_BUSY_WAIT_S: Final = 0.05
_IDLE_WAIT_S: Final = 0.2
_LAST_WAIT_S: Final = 1.0
_BACKLOG_S: Final = 15.0
# How long tasks that are cancelled have to free their claims.
_CANCEL_S: Final = 2.0


class UnrecordedSteps:
    """Completions and releases that the stores did not record. The checkers retry them in the background.

    Args:
        checkers: those of the worker's consumers.
    """

    def __init__(self, checkers: Iterable[AbstractIdempotentChecker]) -> None:
        self._protocols = [checker.protocol for checker in checkers]

    def __len__(self) -> int:
        return sum(protocol.unrecorded for protocol in self._protocols)

    def report(self) -> None:
        """Log those that are left: an error for effects that may be repeated, a warning for keys that are not free."""
        releases = sum(protocol.unrecorded_releases for protocol in self._protocols)
        completions = len(self) - releases
        if completions:
            log.error(
                "completions_not_recorded",
                extra={
                    "keys": completions,
                    "hint": "the store did not answer; when their leases end, other workers may repeat these effects",
                },
            )
        if releases:
            log.warning(
                "releases_not_recorded",
                extra={
                    "keys": releases,
                    "hint": "the store did not answer; these handlers had no effect, and run again when the leases end",
                },
            )


class Worker:
    """Let a registry's consumers process what an adapter receives.

    The thread that calls `run` owns the adapter. Plain handlers run in threads of their own, `async def` handlers as
    tasks of one event loop: the worker's own, in a thread, or with `serve` the caller's. Consumers take turns. Of each,
    at most twice `concurrency` x `batch_size` deliveries run or wait to run, and at most `max_held` are held; no more
    are received of its subject until some are settled, while those of other subjects continue.

    A delivery is acknowledged after the store's verdict, never before. One whose key is in progress elsewhere, or
    whose store does not answer, is held unacknowledged and checked again; after five checks it is requeued, once.

    Args:
        registry: the consumers; one group of a subject, because a delivery is settled once.
        adapter: the source of the messages.
        concurrency: how many handlers (or batches) run at once: so many in threads, and so many in tasks;
            `@consumer(concurrency=...)` limits one consumer.
        batch_size: above 1, up to this many messages of a consumer pass through `process_many` together.
        drain_timeout_s: seconds that running handlers have to finish when the worker stops. Closing takes up to five
            more, so the default stays below the 30 seconds after which Kubernetes kills; on Kafka up to 25, if the
            broker is slow.
        consumers: serve only these, named `subject:group`; None: all of the registry.
        max_held: held deliveries of a consumer above which no new ones of its subject are received.
        gc_interval_s: seconds between two deletions of expired keys, one worker at a time; None: never.
        fail_fast: raise from `run` when a store cannot be used at the start. The adapters have the same option.
        health_file: a file for liveness and readiness probes, see `HealthFile`; None: none.
        redact: keep text and traceback of handlers' exceptions out of the log, because they may quote message bodies.
        services: context managers that are entered while the worker works, and left, last first, when it has drained.
        on_result: called in the thread of `run` with each settled message and its result.

    Attributes:
        health: whether it lives and is ready, and what it runs, for a `HealthServer`.

    Raises:
        ConfigurationError: an option is of another type or out of its range.
    """

    def __init__(
        self,
        registry: Registry,
        adapter: Adapter,
        concurrency: int = 1,
        batch_size: int = 1,
        drain_timeout_s: float = 20.0,
        *,
        consumers: Collection[str] | None = None,
        max_held: int = 200,
        gc_interval_s: float | None = 3600.0,
        fail_fast: bool = False,
        health_file: str | os.PathLike[str] | None = None,
        redact: bool = False,
        services: Iterable[AbstractContextManager[object]] = (),
        on_result: Callable[[Message, Result], object] | None = None,
    ) -> None:
        """Check the numbers; the consumers are checked by `run`."""
        options.check_registry_and_adapter(registry, adapter)
        self._registry = registry
        self._adapter = adapter
        self._batch_size = whole(batch_size, "batch_size")
        self._drain_timeout_s = seconds(drain_timeout_s, "drain_timeout_s", zero=True)
        self._names = options.checked_names(consumers)
        self._gc_interval_s = seconds_or_none(gc_interval_s, "gc_interval_s")
        self._services = options.checked_services(services, adapter)
        self._log = MessageLog(redact=flag(redact, "redact"))
        self._settling = Settling(adapter, registry.observers, self._log, options.checked_callback(on_result))
        self.health: Final = Health(checked_health_file(health_file))
        self._pool = HandlerPool(whole(concurrency, "concurrency"), batch_size, adapter.wake)
        self._long = LongMessages(self._pool, self._log)
        self._holds = Holds()
        self._capacity = Capacity(
            self._pool, self._holds, concurrency, batch_size, max_held=whole(max_held, "max_held")
        )
        self._fail_fast = flag(fail_fast, "fail_fast")
        self._pauses = PauseWatch(())
        self._closed: frozenset[AnyConsumer] = frozenset()
        self._stores = StoreWatch(())
        self._routes: Mapping[str, AnyConsumer] = {}
        self._unrecorded = UnrecordedSteps(())
        self._abandoned = 0
        self._backlog_at = 0.0
        self._crash: BaseException | None = None
        # Plain flags: a signal handler sets them and may take no lock.
        self._started = self._stopping = self._without_drain = False

    def run(self) -> WorkerSummary:
        """Work until `stop`, SIGTERM or SIGINT (in the main thread), or the adapter is finished.

        Stopping, it receives nothing more, requeues what did not start, and settles and records what finishes within
        `drain_timeout_s`. Then `async def` handlers are cancelled and their deliveries requeued. A second signal ends
        it without that wait. Checkers are left open. While it runs, Python's garbage collector is relaxed, see
        `relaxed_python_gc`.

        Raises:
            ConfigurationError: registry, consumers and adapter do not fit together, it ran before, or a loop runs here.
            AdapterError: unrecoverable: the worker stops. Running handlers were drained first.
            StoreError: with `fail_fast`: a store cannot be used.
            BaseException: a handler raised SystemExit, KeyboardInterrupt or the like; its deliveries were requeued.
        """
        options.check_no_running_loop()
        return self._run(None)

    async def serve(self) -> WorkerSummary:
        """Work beside an application, as `run` does: `async def` handlers are tasks of the running loop.

        They see the caller's context variables. The adapter is called in a thread, plain handlers run in others.
        Signals are left alone. Cancelling it stops the worker in order; a second cancellation waits for no handler.

        Raises:
            CancelledError: it was cancelled, and has ended in order.
            BaseException: what `run` raises.
        """
        return await in_thread(self._run, self._interrupt)

    def _run(self, place: LoopPlace | None) -> WorkerSummary:
        if self._started:
            raise ConfigurationError("a Worker runs once; create a new one")
        self._started = True
        self._routes = routes(self._registry, self._names, self._batch_size)
        check_dead_letters(self._adapter, self._routes)
        consumers = tuple(self._routes.values())
        for consumer in consumers:
            consumer.binding.calls.watch()
        checkers = {consumer.checker for consumer in consumers}
        self._pauses = PauseWatch(consumers)
        self._stores = StoreWatch(checkers, pauses=self._pauses, fail_fast=self._fail_fast)
        self._unrecorded = UnrecordedSteps(checkers)
        expired, survey = ExpiredKeys(checkers, self._gc_interval_s), StoreSurvey(consumers)
        in_hand = self._in_hand = InHand(self._pool, self._holds, self._routes, self._pauses)
        self._capacity.serve(consumers)
        with on_stop_signal(self._on_signal), relaxed_python_gc(self._capacity.total), self._stores:
            try:
                self.health.begin(in_hand)
                self._adapter.capacity = self._capacity.largest
                self._close(self._pauses.closed)
                self._adapter.open(consumers)
                log.info("worker_started", extra={"consumers": [consumer.name for consumer in consumers]})
                self._pool.start(consumers, place)
                with inside((expired, survey, *self._services)):
                    try:
                        self._work()
                    finally:
                        self._drain()
            finally:
                self._pool.close(_LAST_WAIT_S)
                self._adapter.close()
                self.health.end()
        summary = self._settling.summary(self._abandoned, len(self._unrecorded))
        log.info("worker_stopped", extra=summary.as_extra())
        if self._crash is not None:
            raise self._crash
        return summary

    def stop(self) -> None:
        """Ask the worker to stop, from any thread, without waiting. If called before `run`, `run` ends immediately."""
        self._stopping = True
        self._adapter.wake()

    def _interrupt(self) -> None:
        # `asyncio.run` cancels all tasks once, at its end: those that start after that would run on.
        self._pool.pause_tasks()
        self._on_signal()
        self._adapter.wake()

    def _on_signal(self) -> None:
        self._without_drain = self._stopping
        self._stopping = True

    def _work(self) -> None:
        while not self._stopping:
            self._beat()
            self._take_back(0.0)
            if self._crash is not None:
                return
            self._follow_pauses()
            now = time.monotonic()
            self._pool.submit(self._holds.due(now))
            if not self._pool.is_busy and not self._holds and self._adapter.finished:
                return
            room, self._adapter.full_subjects = self._capacity.free(self._closed)
            if room:
                longest_s = _BUSY_WAIT_S if self._pool.is_busy else _IDLE_WAIT_S
                wait_s = self._holds.next_in_s(now, longest_s)
                self._accept(self._adapter.receive(room, wait_s))
            else:
                self._adapter.receive(0, 0.0)
                self._take_back(self._holds.next_in_s(now, _BUSY_WAIT_S))

    def _beat(self) -> None:
        self._long.look()
        connected, waits_for = self._adapter.connected, self._adapter.waits_for
        word = (READY if self._stores.ready else STORE) if connected else CONNECTING
        if waits_for is not None and not connected:
            word = WAITING
        self._look_at_backlog()
        self.health.beat(word, long=self._long.count, waits_for=waits_for, paused=self.paused)

    def _look_at_backlog(self) -> None:
        """Ask the broker how many messages wait, if metrics want it."""
        now = time.monotonic()
        if not stores.wanted or now < self._backlog_at:
            return
        self._backlog_at = now + _BACKLOG_S
        found = self._adapter.backlog() if self._adapter.connected else {}
        self._in_hand.backlog = {
            (self._routes[subject].name, partition): count
            for subject, waiting in found.items()
            if subject in self._routes
            for partition, count in (waiting.items() if isinstance(waiting, Mapping) else [("", waiting)])
        }

    @property
    def paused(self) -> frozenset[str]:
        """The names of the consumers that are paused, as their stores said last. Any thread may ask."""
        return self._pauses.paused

    def _close(self, closed: frozenset[AnyConsumer]) -> None:
        self._closed = closed
        self._adapter.paused_subjects = {consumer.subject for consumer in closed}

    def _follow_pauses(self) -> None:
        """Give back what has not begun of a consumer that is paused now, and go on with one that is resumed."""
        before, closed = self._closed, self._pauses.closed
        if closed == before:
            return
        self._close(closed)
        if closed - before:
            self._adapter.receive(
                0, 0.0
            )  # before anything returns to the broker, which may send it again at once
        for consumer in closed - before:
            for work in (*self._pool.withdraw(consumer), *self._holds.take(consumer)):
                self._settling.requeue(work)
        for consumer in before - closed:
            self._pool.submit(self._holds.take(consumer))

    def _accept(self, deliveries: Sequence[Delivery]) -> None:
        self._log.received(deliveries, self._routes)
        works, settled, now = [], [], time.monotonic()
        for delivery in deliveries:
            consumer = self._routes.get(delivery.message.subject)
            if consumer is None or delivery.error is not None:
                error = delivery.error or unknown_subject(delivery.message.subject, self._routes)
                settled.append((delivery, consumer, Result(Outcome.REJECTED, error=error)))
            elif delivery.only_for not in (None, consumer.group):
                log.info(
                    "copy_for_another_group",
                    extra={**about_message(delivery.message), "group": delivery.only_for},
                )
                settled.append((delivery, consumer, Result(Outcome.DUPLICATE)))
            elif consumer in self._closed:  # an adapter may ignore `full_subjects`
                self._holds.add_paused(InFlightDelivery(delivery, consumer, now))
            else:
                works.append(InFlightDelivery(delivery, consumer, now))
        self._pool.submit(works)
        for delivery, consumer, result in settled:
            self._settling.settle(delivery, consumer, result)

    def _take_back(self, wait_s: float) -> None:
        """Settle or hold the works that were processed."""
        for done in self._pool.finished(wait_s):
            if done.crash is not None:
                self._crashed(done)
                continue
            for work, result in zip(done.works, done.results, strict=True):
                if result.action is Action.HOLD:
                    self._hold(work, result)
                else:
                    self._settling.settle(work.delivery, work.consumer, result)

    def _hold(self, work: InFlightDelivery, result: Result) -> None:
        self._log.held(work, result)
        if result.outcome is Outcome.UNAVAILABLE and not isinstance(result.error, StoreBusyError):
            self._stores.suspect(work.consumer.checker)
        if self._stopping or work.held_long_enough or work.consumer in self._closed:
            self._settling.requeue(work)
            return
        longest_s = STORE_RETRY_S if result.retry_after_s is None else result.retry_after_s
        # Asking a store that is down more often does not bring it back sooner.
        wait_s = work.wait_s(longest_s) if result.outcome is Outcome.IN_PROGRESS else longest_s
        self._holds.add(work, time.monotonic() + wait_s)

    def _crashed(self, done: Done) -> None:
        assert done.crash is not None
        if done.works:
            self._log.crashed(done.works[0], done.crash)
        self._crash = self._crash or done.crash
        self._stopping = True
        for work in done.works:
            self._settling.requeue(work)

    def _drain(self) -> None:
        """Requeue deliveries that did not start, then settle those that finish and are recorded in time."""
        self._stopping = True
        until = time.monotonic() + self._drain_timeout_s
        try:
            for work in (*self._pool.stop(), *self._holds.clear()):
                self._settling.requeue(work)
            self._finish(until, self._settle_finished)
        except AdapterError as error:
            log.warning("drain_failed", extra={"error": str(error)})
            self._finish(until, self._drop_finished)
        self._unrecorded.report()
        self._abandoned = self._pool.in_flight.total()
        self._pool.close(_LAST_WAIT_S)  # tasks that handlers left running may use the services

    def _finish(self, until: float, take_finished: Callable[[], None]) -> None:
        """Wait until all is finished and recorded, or time is up and the tasks are cancelled.

        Args:
            until: when time is up.
            take_finished: takes what is finished from the pool; waits for it, for a moment.
        """
        while time.monotonic() < until and not self._without_drain:
            if not self._pool.is_busy and not self._unrecorded:
                return
            take_finished()
        left = self._pool.in_flight.total()
        if not left:
            return
        self._log.drain_timed_out(left, self._pool.running, stores_answer=self._stores.ready)
        self._pool.cancel()  # tasks; a thread cannot be cancelled
        until = time.monotonic() + _CANCEL_S
        while self._pool.has_tasks and time.monotonic() < until:
            take_finished()

    def _settle_finished(self) -> None:
        self._beat()
        self._adapter.receive(0, 0.0)  # heartbeats
        self._take_back(_BUSY_WAIT_S)

    def _drop_finished(self) -> None:
        for _ in self._pool.finished(_BUSY_WAIT_S):
            pass


@contextmanager
def inside(services: Iterable[AbstractContextManager[object]]) -> Iterator[None]:
    """Enter all services, and leave them in reverse order.

    None of them may hide an error: the worker would seem to have ended in order.
    """
    error: BaseException | None = None
    with ExitStack() as entered:
        try:
            for service in services:
                entered.enter_context(service)
            yield
        except BaseException as raised:
            error = raised
            raise
    if error is not None:
        raise error
