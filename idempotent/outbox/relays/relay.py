"""Relay: publishes what committed transactions have left in an outbox."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self

from idempotent.choices import choice, flag, seconds, whole
from idempotent.errors import ConfigurationError
from idempotent.logs import EventLog
from idempotent.observe.observers import Observer, Observers
from idempotent.observe.outboxes import outboxes
from idempotent.outbox.outbox import Outbox
from idempotent.outbox.relays.line import Line, Settings
from idempotent.outbox.relays.survey import Survey
from idempotent.outbox.relays.watch import Watch
from idempotent.outbox.wakes import Listener, can_listen
from idempotent.policy import Backoff
from idempotent.schema.outbox import LANE_BYTES
from idempotent.worker.health_file import checked_health_file

if TYPE_CHECKING:
    from idempotent.adapters.base import Adapter

log = EventLog(__name__)

# How long the owner of a relay that was asked to stop waits for it.
_STOP_S: Final = 10.0


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
        watching = Observers(observers)
        watching.add(outboxes)
        publishers = _checked(publisher)
        owner = secrets.token_bytes(LANE_BYTES)
        self._outbox = outbox
        self._fail_fast = flag(fail_fast, "fail_fast")
        self._lines = [
            Line(outbox, name, adapter, owner, settings, watching) for name, adapter in publishers.items()
        ]
        self._watch = Watch(self._lines, checked_health_file(health_file))
        self._survey = Survey(outbox, sorted(publishers), watching)
        self._running: ExitStack | None = None
        self._stopping = threading.Event()
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
        for line in self._lines:
            line.stop()
        self._stopping.set()

    def __enter__(self) -> Self:
        """Begin to publish, in a thread for each broker. Raises what `run` raises at its start."""
        if self._running is not None:
            raise ConfigurationError("the relay runs already")
        if self._fail_fast:
            self._outbox.store.stats()
        self._stopping.clear()
        with ExitStack() as running:
            running.push(self._end_lines)
            for opened in [line.start() for line in self._lines]:
                opened.result()
            self._watch.start()
            running.callback(self._watch.stop)
            self._survey.start()
            running.callback(self._survey.stop)
            if can_listen(self._outbox.store):
                listener = Listener(self._outbox.store, self._outbox.channel, self._outbox.committed.set)
                running.callback(listener.stop)
            self._running = running.pop_all()
        log.info("relay_started", extra={"destinations": [line.destination for line in self._lines]})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop, and wait until what has committed is published, for ten seconds at most."""
        assert self._running is not None
        running, self._running = self._running, None
        self.stop()  # before the listener, whose end takes a while
        running.__exit__(kind, error, traceback)

    def _end_lines(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Stop the lines, and wait for them, unless a second signal came."""
        self.stop()
        wait_s = 0.0 if isinstance(error, KeyboardInterrupt) else _STOP_S
        until = time.monotonic() + wait_s
        ended = [line.join(max(until - time.monotonic(), 0.0)) for line in self._lines]
        if not all(ended):
            log.warning("relay_abandoned", extra={"waited_s": wait_s})


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
