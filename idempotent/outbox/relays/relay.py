"""Relay: publishes what committed transactions have left in an outbox, measures it, and shows whether it publishes."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self

from idempotent.checkers.repeating import RepeatingThread
from idempotent.errors import ConfigurationError, StoreError
from idempotent.forks import free_in_child
from idempotent.logs import EventLog
from idempotent.observe.counting import outboxes
from idempotent.observe.observers import Observer, Observers
from idempotent.outbox.outbox import Outbox
from idempotent.outbox.relays.destination import DestinationRelay, Settings
from idempotent.outbox.relays.leases import relay_name
from idempotent.outbox.wakes import Listener, can_listen
from idempotent.policy import Backoff
from idempotent.schema import LANE_BYTES
from idempotent.validation import choice, flag, seconds, whole
from idempotent.worker.health import Health
from idempotent.worker.health_file import CONNECTING, READY, STORE, checked_health_file

if TYPE_CHECKING:
    from idempotent.adapters.base import Adapter

log = EventLog(__name__)

# How long the owner of a relay that was asked to stop waits for it.
_STOP_S: Final = 10.0
_LOOK_S: Final = 1.0
_MEASURE_S: Final = 15.0
_OTHERS_S: Final = 60.0


class OnParked(Enum):
    """What becomes of later messages of an order key while one is refused."""

    BLOCK = "block"
    SKIP = "skip"


class Relay:
    """Publishes the messages of an outbox, in the order of each order key, and deletes what the broker has confirmed.

    Any number of relays may run, in workers and by themselves: they share 64 buckets by leases. A message is published
    at least once, always under the same id, so give its consumer a checker.

    Use it as a service of a Worker (`services=[relay]`), as a context manager, or call `run`.

    Args:
        outbox: what to publish.
        publisher: the adapter for the broker, or one for each name that `send(to=...)` uses. The relay opens and closes
            them, each in a thread of its own, and they must not be used elsewhere.
        batch_size: the most messages that are published together; four times as many are read.
        lease_s: seconds after which the buckets of a relay that died are taken over.
        poll_s: the longest wait, in seconds, for messages of other processes.
        on_parked: what becomes of later messages of an order key while one is refused by the broker: "block" lets them
            wait, "skip" publishes them.
        backoff: after how long a refused message is tried again.
        fail_fast: raise on entering, and from `run`, when the database cannot be used at the start. The adapters have
            the same option.
        health_file: a file for liveness and readiness probes, see `HealthFile`; None: none.
        observers: are told what is published and, every fifteen seconds, what waits, see `Observer`.

    Raises:
        ConfigurationError: an option is of another type or out of its range.
    """

    def __init__(
        self,
        outbox: Outbox,
        publisher: Adapter | Mapping[str, Adapter],
        *,
        batch_size: int = 500,
        lease_s: float = 15.0,
        poll_s: float = 0.25,
        on_parked: OnParked | Literal["block", "skip"] = OnParked.BLOCK,
        backoff: Backoff = Backoff(initial_s=1.0, maximum_s=600.0),  # noqa: B008 - it is immutable
        fail_fast: bool = False,
        health_file: str | os.PathLike[str] | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        if not isinstance(outbox, Outbox):
            raise ConfigurationError(f"outbox must be an Outbox, not {type(outbox).__name__}")
        kind: object = backoff
        if not isinstance(kind, Backoff):
            raise ConfigurationError(f"backoff must be a Backoff, not {kind!r}")
        settings = Settings(
            whole(batch_size, "batch_size"),
            seconds(lease_s, "lease_s"),
            seconds(poll_s, "poll_s"),
            choice(OnParked, on_parked, "on_parked") is OnParked.SKIP,
            backoff,
        )
        self._observers = Observers(observers)
        self._observers.add(outboxes)
        publishers = _checked(publisher)
        owner = secrets.token_bytes(LANE_BYTES)
        self._name: Final = relay_name(owner)
        self._names: Final = [*publishers]
        self._outbox = outbox
        self._fail_fast = flag(fail_fast, "fail_fast")
        self._destinations = [
            DestinationRelay(outbox, name, adapter, owner, settings, self._observers)
            for name, adapter in publishers.items()
        ]
        self.health: Final = Health(checked_health_file(health_file))
        """Whether it lives and is ready, for a `HealthServer`."""
        self._watch = RepeatingThread(self._look, "idempotent-relay-watch", _LOOK_S)
        # In a thread of its own: to count many messages takes a while.
        self._survey = RepeatingThread(self._measure, "idempotent-relay-survey", _LOOK_S)
        self._next_measure = self._next_others = 0.0
        self._running: ExitStack | None = None
        self._stopping = free_in_child(threading.Event())
        self.adapters: Final = tuple(publishers.values())
        """Its adapters, which nothing else may use."""

    def run(self) -> None:
        """Publish until `stop`.

        Raises:
            AdapterError: a broker refuses the connection at the start: a wrong password, for example.
            StoreError: with `fail_fast`: the database cannot be used at the start.
        """
        with self:
            self._stopping.wait()

    def stop(self) -> None:
        """Ask it to stop, from any thread, without waiting: it publishes what has committed, for two seconds."""
        for each in self._destinations:
            each.stop()
        self._stopping.set()

    def __enter__(self) -> Self:
        """Begin to publish, in a thread for each broker. Raises what `run` raises at its start."""
        if self._running is not None:
            raise ConfigurationError("the relay runs already")
        if self._fail_fast:
            self._outbox.store.stats()
        self._stopping.clear()
        with ExitStack() as running:
            running.push(self._end_destinations)
            self.health.begin()
            running.callback(self.health.end)
            for opened in [each.start() for each in self._destinations]:
                opened.result()
            self._look()
            self._watch.start()
            running.callback(
                self._watch.stop, None
            )  # a look that is under way must not make the health file again
            self._survey.start()
            running.callback(self._survey.stop)
            if can_listen(self._outbox.store):
                listener = Listener(self._outbox.store, self._outbox.channel, self._wake)
                running.callback(listener.stop)
            self._running = running.pop_all()
        log.info("relay_started", extra={"relay": self._name, "destinations": self._names})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop, and wait until what has committed is published, for ten seconds at most."""
        assert self._running is not None
        running, self._running = self._running, None
        log.info("relay_stopping", extra={"relay": self._name, "destinations": self._names})
        self.stop()  # before the listener, whose end takes a while
        running.__exit__(kind, error, traceback)
        log.info("relay_stopped", extra={"relay": self._name, "destinations": self._names})

    def _end_destinations(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Stop the destinations, and wait for them, unless a second signal came."""
        self.stop()
        wait_s = 0.0 if isinstance(error, KeyboardInterrupt) else _STOP_S
        until = time.monotonic() + wait_s
        ended = [each.join(max(until - time.monotonic(), 0.0)) for each in self._destinations]
        if not all(ended):
            log.warning("relay_abandoned", extra={"waited_s": wait_s})

    def _wake(self) -> None:
        for each in self._destinations:
            each.woken.set()

    def _look(self) -> None:
        """Tell the health file the worst of its brokers, unless one is stuck."""
        words = [each.look() for each in self._destinations]
        if None not in words:
            self.health.beat(next(word for word in (STORE, CONNECTING, READY) if word in words))

    def _measure(self) -> None:
        now = time.monotonic()
        with suppress(StoreError):  # the destinations tell that the database is away
            if now >= self._next_measure:
                self._next_measure = now + _MEASURE_S
                self._observers.measured(self._outbox.channel, self._outbox.store.stats())
            if now >= self._next_others:
                self._next_others = now + _OTHERS_S
                other = self._outbox.store.other_destination(self._names)
                if other is not None:
                    hint = "unless another relay has one, give this one a publisher of that name"
                    log.warning("relay_has_no_publisher", extra={"destination": other, "hint": hint})


def _checked(publisher: object) -> dict[str, Adapter]:
    """The adapters by name.

    Raises:
        ConfigurationError: no adapter is given, or an object that is not an adapter.
    """
    from idempotent.adapters.base import Adapter

    publishers = publisher if isinstance(publisher, Mapping) else {"": publisher}
    if not publishers:
        raise ConfigurationError("a relay needs at least one publisher")
    for adapter in publishers.values():
        if not isinstance(adapter, Adapter):
            raise ConfigurationError(
                f"publisher must be an adapter, or a dict of adapters by name, not {type(adapter).__name__}"
            )
    return dict(publishers)
