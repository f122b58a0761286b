"""Worker: adapter -> checker -> handler -> checker -> settle, until it is stopped."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from idempotent.choices import flag, seconds, seconds_or_none, whole
from idempotent.consumer import Consumer
from idempotent.errors import AdapterError, ConfigurationError, StoreBusyError
from idempotent.message import Message
from idempotent.outcomes import Action, Outcome, Result
from idempotent.processing.results import STORE_RETRY_S
from idempotent.registry import Registry
from idempotent.worker import given
from idempotent.worker.expired_keys import ExpiredKeys
from idempotent.worker.health_file import CONNECTING, READY, STORE
from idempotent.worker.holds import Holds, Work
from idempotent.worker.message_log import MessageLog
from idempotent.worker.pool import Done, HandlerPool
from idempotent.worker.python_gc import relaxed_python_gc
from idempotent.worker.rooms import Rooms
from idempotent.worker.routes import check_dead_letters, routes, unknown_subject
from idempotent.worker.services import inside
from idempotent.worker.signals import on_stop_signal
from idempotent.worker.store_watch import StoreWatch
from idempotent.worker.summary import WorkerSummary
from idempotent.worker.unrecorded import UnrecordedSteps

if TYPE_CHECKING:
    from idempotent.adapters.base import Adapter, Delivery

log = logging.getLogger(__name__)

# How long `receive` may wait: with handlers running (where the adapter cannot be woken), and without.
_BUSY_WAIT_S: Final = 0.05
_IDLE_WAIT_S: Final = 0.2


class Worker:
    """Let a registry's consumers process what an adapter receives.

    The thread that calls `run` owns the adapter; handlers run in threads of their own. Consumers take turns. Of each,
    at most twice `concurrency` x `batch_size` deliveries run or wait to run, and at most `max_held` are held; no more
    are received of its subject until some are settled, while those of other subjects continue.

    A delivery is acknowledged after the store's verdict, never before. One whose key is in progress elsewhere, or
    whose store does not answer, is held unacknowledged and checked again; after five checks it is requeued, once.

    Args:
        registry: the consumers; one group of a subject, because a delivery is settled once.
        adapter: the source of the messages.
        concurrency: how many handlers (or batches) run at once, each in a thread; `@consumer(concurrency=...)` limits
            one consumer.
        batch_size: above 1, up to this many messages of a consumer pass through `process_many` together.
        drain_timeout_s: seconds that running handlers have to finish when the worker stops. Closing takes up to five
            more, so the default stays below the 30 seconds after which Kubernetes kills.
        consumers: serve only these, named `subject:group`; None: all of the registry.
        max_held: held deliveries of a consumer above which no new ones of its subject are received.
        gc_interval_s: seconds between two deletions of expired keys, one worker at a time; None: never.
        fail_fast: raise from `run` when a store cannot be used at the start. The adapters have the same option.
        health_file: a file for liveness and readiness probes, see `HealthFile`; None: none.
        redact: keep text and traceback of handlers' exceptions out of the log, because they may quote message bodies.
        services: context managers that are entered while the worker works, and left, last first, when it has drained.
        on_result: called in the thread of `run` with each settled message and its result.

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
        given.check_registry_and_adapter(registry, adapter)
        self._registry = registry
        self._adapter = adapter
        self._batch_size = whole(batch_size, "batch_size")
        self._drain_timeout_s = seconds(drain_timeout_s, "drain_timeout_s", zero=True)
        self._names = given.checked_names(consumers)
        self._gc_interval_s = seconds_or_none(gc_interval_s, "gc_interval_s")
        self._services = given.checked_services(services)
        self._on_result = given.checked_callback(on_result)
        self._log = MessageLog(redact=flag(redact, "redact"))
        self._health = given.checked_health_file(health_file)
        self._pool = HandlerPool(whole(concurrency, "concurrency"), batch_size, adapter.wake)
        self._holds = Holds()
        self._rooms = Rooms(
            self._pool, self._holds, concurrency, batch_size, max_held=whole(max_held, "max_held")
        )
        self._fail_fast = flag(fail_fast, "fail_fast")
        self._stores = StoreWatch(())
        self._routes: Mapping[str, Consumer] = {}
        self._unrecorded = UnrecordedSteps(())
        self._outcomes: Counter[Outcome] = Counter()
        self._requeued = 0
        self._abandoned = 0
        self._crash: BaseException | None = None
        # Plain flags: a signal handler sets them and may take no lock.
        self._started = self._stopping = self._without_drain = False

    def run(self) -> WorkerSummary:
        """Work until `stop`, SIGTERM or SIGINT (in the main thread), or the adapter is finished.

        Stopping, it receives nothing more, requeues what did not start, and settles and records what finishes within
        `drain_timeout_s`. A second signal ends it without that wait. Checkers are left open. While it runs, Python's
        garbage collector is relaxed, see `relaxed_python_gc`.

        Raises:
            ConfigurationError: registry, consumers and adapter do not fit together, or it ran before.
            AdapterError: unrecoverable: the worker stops. Running handlers were drained first.
            StoreError: with `fail_fast`: a store cannot be used.
            BaseException: a handler raised SystemExit, KeyboardInterrupt or the like; its deliveries were requeued.
        """
        if self._started:
            raise ConfigurationError("a Worker runs once; create a new one")
        self._started = True
        self._routes = routes(self._registry, self._names, self._batch_size)
        check_dead_letters(self._adapter, self._routes)
        consumers = tuple(self._routes.values())
        checkers = {consumer.checker for consumer in consumers}
        self._stores = StoreWatch(checkers, fail_fast=self._fail_fast)
        self._unrecorded = UnrecordedSteps(checkers)
        expired = ExpiredKeys(checkers, self._gc_interval_s)
        self._rooms.serve(consumers)
        with on_stop_signal(self._on_signal), relaxed_python_gc(self._rooms.total), self._stores:
            try:
                self._adapter.capacity = self._rooms.largest
                self._adapter.open(consumers)
                log.info("worker_started", extra={"consumers": [consumer.name for consumer in consumers]})
                self._pool.start()
                with inside((expired, *self._services)):
                    try:
                        self._work()
                    finally:
                        self._drain()
            finally:
                self._adapter.close()
                if self._health is not None:
                    self._health.remove()
        counts = (self._requeued, self._abandoned, self._adapter.stale_settlements, len(self._unrecorded))
        summary = WorkerSummary(MappingProxyType(dict(self._outcomes)), *counts)
        log.info("worker_stopped", extra=summary.as_extra())
        if self._crash is not None:
            raise self._crash
        return summary

    def stop(self) -> None:
        """Ask the worker to stop, from any thread, without waiting. If called before `run`, `run` ends immediately."""
        self._stopping = True
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
            now = time.monotonic()
            self._pool.submit(self._holds.due(now))
            if not self._pool.is_busy and not self._holds and self._adapter.finished:
                return
            room, self._adapter.full_subjects = self._rooms.free()
            if room:
                longest_s = _BUSY_WAIT_S if self._pool.is_busy else _IDLE_WAIT_S
                wait_s = self._holds.next_in_s(now, longest_s)
                self._accept(self._adapter.receive(room, wait_s))
            else:
                self._adapter.receive(0, 0.0)
                self._take_back(self._holds.next_in_s(now, _BUSY_WAIT_S))

    def _beat(self) -> None:
        if self._health is None:
            return
        try:
            connected = self._adapter.connected
            self._health.beat((READY if self._stores.ready else STORE) if connected else CONNECTING)
        except OSError as error:
            # The probe will notice the old file; messages continue.
            log.warning("health_file_failed", extra={"error": str(error)})

    def _accept(self, deliveries: Sequence[Delivery]) -> None:
        works, rejected = [], []
        for delivery in deliveries:
            consumer = self._routes.get(delivery.message.subject)
            if consumer is None or delivery.error is not None:
                rejected.append(delivery)
            else:
                works.append(Work(delivery, consumer))
        self._pool.submit(works)
        for delivery in rejected:
            error = delivery.error or unknown_subject(delivery.message.subject, self._routes)
            self._settle(delivery, Result(Outcome.REJECTED, error=error))

    def _take_back(self, wait_s: float) -> None:
        """Settle or hold the works that the handlers' threads have processed."""
        for done in self._pool.finished(wait_s):
            if done.crash is not None:
                self._crashed(done)
                continue
            for work, result in zip(done.works, done.results, strict=True):
                if result.action is Action.HOLD:
                    self._hold(work, result)
                else:
                    self._settle(work.delivery, result)

    def _settle(self, delivery: Delivery, result: Result) -> None:
        observers = self._registry.observers
        if observers.watch_settling:
            observers.settling(delivery.message, result)
        self._adapter.settle(delivery, result)
        self._outcomes[result.outcome] += 1
        self._log.settled(self._routes.get(delivery.message.subject), delivery.message, result)
        observers.settled(delivery.message, result)
        if self._on_result is not None:
            try:
                self._on_result(delivery.message, result)
            except Exception:
                # A broken progress bar must not stop the messages.
                log.exception("on_result_failed")

    def _hold(self, work: Work, result: Result) -> None:
        self._log.held(work, result)
        if result.outcome is Outcome.UNAVAILABLE and not isinstance(result.error, StoreBusyError):
            self._stores.suspect(work.consumer.checker)
        if self._stopping or work.held_long_enough:
            self._requeue(work)
            return
        longest_s = STORE_RETRY_S if result.retry_after_s is None else result.retry_after_s
        # Asking a store that is down more often does not bring it back sooner.
        wait_s = work.wait_s(longest_s) if result.outcome is Outcome.IN_PROGRESS else longest_s
        self._holds.add(work, time.monotonic() + wait_s)

    def _requeue(self, work: Work) -> None:
        self._adapter.requeue(work.delivery)
        self._requeued += 1

    def _crashed(self, done: Done) -> None:
        assert done.crash is not None
        self._log.crashed(done.works[0], done.crash)
        self._crash = self._crash or done.crash
        self._stopping = True
        for work in done.works:
            self._requeue(work)

    def _drain(self) -> None:
        """Requeue deliveries that did not start, then settle those that finish and are recorded in time."""
        self._stopping = True
        until = time.monotonic() + self._drain_timeout_s
        try:
            for work in (*self._pool.stop(), *self._holds.clear()):
                self._requeue(work)
            while self._unfinished(until):
                self._beat()
                self._adapter.receive(0, 0.0)  # heartbeats
                self._take_back(_BUSY_WAIT_S)
        except AdapterError as error:
            log.warning("drain_failed", extra={"error": str(error)})
            while self._unfinished(until):
                for _ in self._pool.finished(_BUSY_WAIT_S):
                    pass
        self._unrecorded.report()
        self._abandoned = self._pool.in_flight.total()
        if self._abandoned:
            self._log.drain_timed_out(self._abandoned, self._pool.running, stores_answer=self._stores.ready)
        else:
            self._pool.join(1.0)

    def _unfinished(self, until: float) -> bool:
        """Whether the drain goes on: handlers run, or the store has not recorded what they did."""
        waits = time.monotonic() < until and not self._without_drain
        return waits and bool(self._pool.is_busy or self._unrecorded)
