"""Worker: adapter -> checker -> handler -> checker -> settle, until it is stopped."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from idempotent.consumer import Consumer
from idempotent.errors import AdapterError, ConfigurationError, MessageError
from idempotent.message import Message
from idempotent.outcomes import Action, Outcome, Result
from idempotent.processing.results import STORE_RETRY_S
from idempotent.registry import Registry
from idempotent.worker.expired_keys import ExpiredKeys
from idempotent.worker.health_file import HealthFile
from idempotent.worker.holds import Holds, Work
from idempotent.worker.pool import Done, HandlerPool
from idempotent.worker.python_gc import relaxed_python_gc
from idempotent.worker.routes import routes
from idempotent.worker.signals import on_stop_signal
from idempotent.worker.summary import WorkerSummary

if TYPE_CHECKING:
    from idempotent.adapters.base import Adapter, Delivery

log = logging.getLogger(__name__)

# How long `receive` may wait: with handlers running (where the adapter cannot be woken), and without.
_BUSY_WAIT_S: Final = 0.05
_IDLE_WAIT_S: Final = 0.2


class Worker:
    """Let a registry's consumers process what an adapter receives.

    The thread that calls `run` owns the adapter; handlers run in threads of their own. At most twice
    `concurrency` x `batch_size` deliveries run or wait to run; no more are received until some are settled.

    A delivery is acknowledged after the store's verdict, never before. One whose key is in progress elsewhere, or
    whose store does not answer, is held unacknowledged and checked again; after five checks it is requeued, once.

    Args:
        registry: the consumers; one group of a subject, because a delivery is settled once.
        adapter: the source of the messages.
        concurrency: how many handlers (or batches) run at once, each in a thread.
        batch_size: above 1, up to this many messages of a consumer pass through `process_many` together.
        drain_timeout_s: seconds that running handlers have to finish when the worker stops.
        consumers: serve only these, named `subject:group`; None: all of the registry.
        max_held: held deliveries above which no new ones are received.
        gc_interval_s: seconds between two deletions of expired keys, one worker at a time; None: never.
        health_file: a file for liveness and readiness probes, see `HealthFile`; None: none.
        services: context managers that are entered while the worker works, and left, last first, when it has drained.
        on_result: called in the thread of `run` with each settled message and its result.

    Raises:
        ConfigurationError: a number is out of its range, or a service is not a context manager.
    """

    def __init__(
        self,
        registry: Registry,
        adapter: Adapter,
        concurrency: int = 1,
        batch_size: int = 1,
        drain_timeout_s: float = 30.0,
        *,
        consumers: Collection[str] | None = None,
        max_held: int = 200,
        gc_interval_s: float | None = 3600.0,
        health_file: str | os.PathLike[str] | None = None,
        services: Iterable[AbstractContextManager[object]] = (),
        on_result: Callable[[Message, Result], object] | None = None,
    ) -> None:
        """Check the numbers; the consumers are checked by `run`."""
        for name, number in (
            ("concurrency", concurrency),
            ("batch_size", batch_size),
            ("max_held", max_held),
        ):
            if number < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {number}")
        if drain_timeout_s < 0:
            raise ConfigurationError(f"drain_timeout_s must not be negative, not {drain_timeout_s}")
        self._registry = registry
        self._adapter = adapter
        self._batch_size = batch_size
        self._drain_timeout_s = drain_timeout_s
        self._names = consumers
        self._gc_interval_s = gc_interval_s
        self._services = tuple(services)
        for service in self._services:
            if not isinstance(service, AbstractContextManager):
                raise ConfigurationError(f"services takes context managers, not {service!r}")
        self._on_result = on_result
        self._health = HealthFile(health_file) if health_file is not None else None
        self._max_in_flight = 2 * concurrency * batch_size
        self._pool = HandlerPool(concurrency, batch_size, adapter.wake)
        self._holds = Holds(max_held)
        self._routes: Mapping[str, Consumer] = {}
        self._outcomes: Counter[Outcome] = Counter()
        self._requeued = 0
        self._abandoned = 0
        self._crash: BaseException | None = None
        # Plain flags: a signal handler sets them and may take no lock.
        self._started = False
        self._stopping = False
        self._without_drain = False

    def run(self) -> WorkerSummary:
        """Work until `stop`, SIGTERM or SIGINT (in the main thread), or the adapter is finished.

        Stopping, it receives nothing more, requeues what did not start, and settles what finishes within
        `drain_timeout_s`. A second signal ends it without that wait. Checkers are left open. While it runs, Python's
        garbage collector is relaxed, see `relaxed_python_gc`.

        Raises:
            ConfigurationError: registry, consumers and adapter do not fit together, or it ran before.
            AdapterError: unrecoverable: the worker stops. Running handlers were drained first.
            BaseException: a handler raised SystemExit, KeyboardInterrupt or the like; its deliveries were requeued.
        """
        if self._started:
            raise ConfigurationError("a Worker runs once; create a new one")
        self._started = True
        self._routes = routes(self._registry, self._names, self._batch_size)
        consumers = tuple(self._routes.values())
        expired = ExpiredKeys({consumer.checker for consumer in consumers}, self._gc_interval_s)
        with on_stop_signal(self._on_signal), relaxed_python_gc(self._max_in_flight):
            try:
                self._adapter.open(consumers)
                log.info("worker_started", extra={"consumers": [consumer.name for consumer in consumers]})
                self._pool.start()
                with ExitStack() as services:
                    for service in (expired, *self._services):
                        services.enter_context(service)
                    try:
                        self._work()
                    finally:
                        self._drain()
            finally:
                self._adapter.close()
                if self._health is not None:
                    self._health.remove()
        summary = WorkerSummary(
            MappingProxyType(dict(self._outcomes)),
            self._requeued,
            self._abandoned,
            self._adapter.stale_settlements,
        )
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
            self._pool.submit(self._holds.due(now, self._room()))
            room = 0 if self._holds.full else self._room()
            if not self._pool.in_flight and not self._holds and self._adapter.finished:
                return
            if room:
                longest_s = _BUSY_WAIT_S if self._pool.in_flight else _IDLE_WAIT_S
                wait_s = self._holds.next_in_s(now, longest_s)
                self._accept(self._adapter.receive(room, wait_s))
            else:
                self._adapter.receive(0, 0.0)
                # The pool is full: due re-checks wait until a handler finishes.
                self._take_back(self._holds.next_in_s(now, _BUSY_WAIT_S) if self._room() else _BUSY_WAIT_S)

    def _beat(self) -> None:
        if self._health is None:
            return
        try:
            self._health.beat(ready=self._adapter.connected)
        except OSError as error:
            # The probe will notice the old file; messages continue.
            log.warning("health_file_failed", extra={"error": str(error)})

    def _room(self) -> int:
        return max(self._max_in_flight - self._pool.in_flight, 0)

    def _accept(self, deliveries: Sequence[Delivery]) -> None:
        works, unknown = [], []
        for delivery in deliveries:
            consumer = self._routes.get(delivery.message.subject)
            if consumer is not None:
                works.append(Work(delivery, consumer))
            else:
                unknown.append(delivery)
        self._pool.submit(works)
        for delivery in unknown:
            known = ", ".join(sorted(self._routes))
            error = MessageError(f"no consumer of subject {delivery.message.subject!r}; known: {known}")
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
        self._adapter.settle(delivery, result)
        self._outcomes[result.outcome] += 1
        if result.action is not Action.ACK:
            log.warning(
                "message_failed" if result.action is Action.DELAY else "message_dead",
                extra={
                    "subject": delivery.message.subject,
                    "position": delivery.message.position,
                    "outcome": result.outcome.value,
                    "error": type(result.error).__name__,
                    "retry_after_s": result.retry_after_s,
                },
            )
        self._registry.observers.settled(delivery.message, result)
        if self._on_result is not None:
            try:
                self._on_result(delivery.message, result)
            except Exception:
                # A broken progress bar must not stop the messages.
                log.exception("on_result_failed")

    def _hold(self, work: Work, result: Result) -> None:
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
        log.error(
            "handler_crashed",
            extra={"consumer": done.works[0].consumer.name, "error": type(done.crash).__name__},
        )
        self._crash = self._crash or done.crash
        self._stopping = True
        for work in done.works:
            self._requeue(work)

    def _drain(self) -> None:
        """Requeue deliveries that did not start, then settle those that finish in time."""
        self._stopping = True
        until = time.monotonic() + self._drain_timeout_s
        try:
            for work in (*self._pool.stop(), *self._holds.clear()):
                self._requeue(work)
            while self._pool.in_flight and not self._without_drain and time.monotonic() < until:
                self._beat()
                self._adapter.receive(0, 0.0)  # heartbeats
                self._take_back(_BUSY_WAIT_S)
        except AdapterError as error:
            # The broker delivers all of them again; their keys are recorded in the store.
            log.warning("drain_failed", extra={"error": str(error)})
            while self._pool.in_flight and not self._without_drain and time.monotonic() < until:
                for _ in self._pool.finished(_BUSY_WAIT_S):
                    pass
        self._abandoned = self._pool.in_flight
        if self._abandoned:
            log.error("drain_timed_out", extra={"running": self._abandoned})
        else:
            self._pool.join(1.0)
