"""DestinationRelay: publishes the messages of an outbox that are for one broker."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from idempotent.errors import StoreError, described
from idempotent.logs import EventLog
from idempotent.observe.log_lines import LogThrottle
from idempotent.observe.observers import Observers
from idempotent.outbox.outbox import Outbox
from idempotent.outbox.relays.leases import BucketLeases
from idempotent.outbox.relays.publishing import Activity, Doing, Publishing
from idempotent.outbox.relays.settling import Deletions, Holds
from idempotent.outbox.store import OutboxStore, Waiting
from idempotent.policy import Backoff
from idempotent.values import value
from idempotent.worker.health_file import CONNECTING, READY, STORE

if TYPE_CHECKING:
    from idempotent.adapters.base import Adapter

log = EventLog(__name__)

# After a batch, messages of other processes are looked for soon; the waits grow to `poll_s`.
_SOON_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 15.0
# How long one that was asked to stop goes on with what has committed.
_LAST_S: Final = 2.0
# After so many batches it looks what has arrived meanwhile: one order key must not keep the others waiting.
_MOST_WAVES: Final = 16
# Reads are larger than batches: fewer reads, and fuller batches, because a batch has one message of an order key.
_READ_AHEAD: Final = 4
# The most bytes of bodies and headers that are read together, as far as earlier messages tell.
_BYTES: Final = 16_000_000
_FIRST: Final = 64
_GROWTH: Final = 4
# At least so many messages of each bucket are read, so that one that begins to fill is noticed.
_LEAST: Final = 8
# What differs from one error of the same cause to the next: ids, counts, ports.
_DETAILS: Final = re.compile(r"[0-9a-fA-F-]{8,}|\d+")
_EVERY_S: Final = 1.0
_FREE_S: Final = 60.0
_MOST_MOVES: Final = 20


@value
class Settings:
    """What the destinations of a relay have in common.

    Attributes:
        batch_size: the most messages that are published together.
        lease_s: seconds after which the buckets of a relay that died are taken over.
        poll_s: the longest wait, in seconds, for messages of other processes.
        skips: hold a refused message alone; False: with it all later ones of its order key.
        backoff: after how long a refused message is tried again.
    """

    batch_size: int
    lease_s: float
    poll_s: float
    skips: bool
    backoff: Backoff


class DestinationRelay:
    """Reads, publishes and deletes, in a thread of its own, which owns the adapter.

    Args:
        outbox: what to publish.
        destination: the name of the broker, as in `Outbox.send(to=...)`.
        adapter: for it.
        owner: the token of the relay.
        settings: of the relay.
        observers: are told what is published.

    Attributes:
        activity: what it does at the moment.
        leases: its buckets.
    """

    def __init__(
        self,
        outbox: Outbox,
        destination: str,
        adapter: Adapter,
        owner: bytes,
        settings: Settings,
        observers: Observers,
    ) -> None:
        store = outbox.store
        self.destination: Final = destination
        self.activity: Final = Activity()
        self.leases: Final = BucketLeases(store, destination, owner, settings.lease_s)
        self._outbox = outbox
        self._settings = settings
        self._publishing = Publishing(
            adapter, self.activity, lambda taken, refused: observers.relayed(outbox.channel, taken, refused)
        )
        self._deletions = Deletions(store)
        self._holds = Holds(
            store, destination, self._publishing, self._deletions, settings.backoff, skips=settings.skips
        )
        self._window = Window(settings.batch_size * _READ_AHEAD)
        self._upkeep = Upkeep(store, destination, self._publishing, self._holds, settings.batch_size)
        self._outage = Outage(destination)
        self._store_answers = True
        self._failures = 0
        self._begin()

    def _begin(self) -> None:
        self._ends_at = math.inf
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def word(self) -> str:
        """How it is, as a health file says it."""
        if not self._store_answers:
            return STORE
        return READY if self._publishing.connected else CONNECTING

    def tell_hang(self, doing: Doing, waited_s: float) -> None:
        """Say, from another thread, that it waits long for one answer, unless the log says already why it waits."""
        if doing is Doing.STORE or not self._publishing.lost:
            self._outage.tell_hang(doing.value, waited_s)

    def start(self) -> Future[None]:
        """Begin. The answer comes when the adapter is open, or could not be opened."""
        self._begin()
        opened: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._serve, args=(opened,), name="idempotent-relay", daemon=True
        )
        self._thread.start()
        return opened

    def stop(self) -> None:
        """Ask it to stop, from any thread, without waiting: it publishes what has committed, for two seconds."""
        if not self._stopping.is_set():
            self._ends_at = time.monotonic() + _LAST_S
        self._stopping.set()
        self._outbox.committed.set()

    def join(self, wait_s: float) -> bool:
        """Wait for its end. Returns whether it has ended."""
        if self._thread is None:
            return True
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _serve(self, opened: Future[None]) -> None:
        try:
            self._publishing.open()
        except BaseException as error:
            opened.set_exception(error)
            return
        opened.set_result(None)
        committed = self._outbox.committed.add()
        self.leases.start()
        try:
            self._publish_until_stopped(committed)
        finally:
            self._outbox.committed.remove(committed)
            self.leases.stop()
            self._publishing.close()
            self._deletions.close()

    def _publish_until_stopped(self, committed: threading.Event) -> None:
        wait_s = _SOON_S
        while not self._stopping.is_set():
            committed.clear()
            if self._step():
                wait_s = _SOON_S
                continue
            if self._failures:
                self._stopping.wait(min(0.1 * 2 ** min(self._failures, 10), _LONGEST_PAUSE_S))
            else:
                committed.wait(wait_s)
            wait_s = min(wait_s * 2, self._settings.poll_s)
        while self._step():
            continue  # what committed before the stop

    def _step(self) -> bool:
        """Publish a batch. False: there is nothing to publish now, or something failed."""
        try:
            with self.activity.doing(Doing.STORE):
                goes_on = self._publish_what_waits()
        except StoreError as error:
            self._failures += 1
            self._store_answers = False
            self._outage.tell(error)
            return False
        except Exception as error:
            # A bug must not end it without a word: the messages would wait for ever.
            log.exception("relay_failed", extra={"error": described(error)})
            self._failures += 1
            return False
        self._failures = 0
        self._store_answers = True
        if self._publishing.connected:
            self._outage.end()
        return goes_on

    def _publish_what_waits(self) -> bool:
        self._deletions.finish()
        buckets = self.leases.buckets
        self._tell(self._upkeep.work(buckets))
        messages = self._holds.without_held(self._read(buckets))
        goes_on = bool(messages)
        for wave in waves(messages, self._settings.batch_size)[:_MOST_WAVES]:
            goes_on = time.monotonic() < self._ends_at and self._publish(wave)
            if not goes_on:
                break
        self._deletions.finish()
        return goes_on

    def _read(self, buckets: set[int]) -> list[Waiting]:
        # Fenced before each read: what is published was read by the relay that has the buckets' fences.
        self._tell(self._publishing.fence(buckets))
        if not buckets or not self._publishing.is_ready:
            return []
        limits = self._window.limits(buckets)
        messages = self._outbox.store.read(limits, self.destination)
        self._window.note(messages)
        # Small batches look at first where messages were the last time.
        return messages if messages or len(limits) == len(buckets) else self._read(buckets)

    def _publish(self, wave: Sequence[Waiting]) -> bool:
        """Publish messages of different lanes. False: what was read after them must be read again."""
        mine = self.leases.buckets
        published = self._publishing.publish([message for message in wave if message.bucket in mine])
        # Behind fences a message must not come again after the next one, so it is deleted before that is published.
        delete = self._deletions.add if self._publishing.has_fences else self._deletions.begin
        delete(published.accepted)
        self._holds.hold(published.refused)
        self._tell(published.error)
        return not published.refused and published.error is None

    def _tell(self, error: Exception | None) -> None:
        if error is not None:
            self._outage.tell(error)


def waves(messages: Sequence[Waiting], most: int) -> list[list[Waiting]]:
    """The messages in batches that have at most one of each lane: a batch may stop midway."""
    found: list[list[Waiting]] = []
    after: dict[bytes, int] = {}
    for message in messages:
        number = after.get(message.lane, 0)
        while number < len(found) and len(found[number]) >= most:
            number += 1
        if number == len(found):
            found.append([])
        found[number].append(message)
        after[message.lane] = number + 1
    return found


class Window:
    """Divides a batch among buckets: those that had messages at the last read get equal parts of it.

    Args:
        batch_size: the most messages of a batch, about.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._most = min(batch_size, _FIRST)
        self._busy: set[int] = set()

    def limits(self, buckets: Collection[int]) -> dict[int, int]:
        """How many messages to read of each bucket."""
        busy = self._busy.intersection(buckets)
        least = min(_LEAST, self._most)
        part = max(self._most // max(len(busy) or len(buckets), 1), least)
        if self._most < len(buckets):  # large messages: a few buckets at a time
            chosen = sorted(busy)[: self._most] or sorted(buckets)
            return dict.fromkeys(chosen, 1)
        return {bucket: part if bucket in busy or not busy else least for bucket in sorted(buckets)}

    def note(self, messages: Sequence[Waiting]) -> None:
        """Note what was read."""
        self._busy = {message.bucket for message in messages}
        if messages:
            size = sum(len(each.body or b"") + len(each.headers or b"") for each in messages) / len(messages)
            room = int(_BYTES / max(size, 1.0))
            self._most = max(min(self._most * _GROWTH, self._batch_size, room), 1)


class Outage:
    """The time in which a destination waits for the database or its broker.

    Args:
        destination: the name of the broker.
    """

    def __init__(self, destination: str) -> None:
        self._destination: Final = destination
        self._told = LogThrottle()
        self._cause = ""
        self._lasts = False
        self._hangs: LogThrottle | None = None

    def tell(self, error: Exception) -> None:
        """Say why the relay waits. Another cause is told at once."""
        self._lasts = True
        text = described(error)
        cause = _DETAILS.sub("", text)
        if cause != self._cause:
            self._told, self._cause = LogThrottle(), cause
        more = self._told.take()
        if more is not None:
            log.warning("relay_waits", extra={"destination": self._destination, "error": text, "more": more})

    def tell_hang(self, server: str, waited_s: float) -> None:
        """Say, from another thread, that it waits long for one answer, unless it has said why it waits."""
        if self._lasts:
            return
        if self._hangs is None:
            self._hangs = LogThrottle()
        if self._hangs.take() is not None:
            about = {"destination": self._destination, "server": server, "waited_s": round(waited_s)}
            log.warning("relay_hangs", extra=about)

    def end(self) -> None:
        """Say that it goes on, if it waited."""
        if self._lasts or self._hangs is not None:
            self._told, self._lasts, self._hangs = LogThrottle(), False, None
            log.warning("relay_goes_on", extra={"destination": self._destination})


class Upkeep:
    """Releases delayed messages, tries held ones again, and keeps the connection to the broker alive.

    Args:
        store: the outbox.
        destination: the name of the broker.
        publishing: publishes.
        holds: the held lanes.
        batch_size: the most delayed messages that are moved together.
    """

    def __init__(
        self, store: OutboxStore, destination: str, publishing: Publishing, holds: Holds, batch_size: int
    ) -> None:
        self._store = store
        self._destination: Final = destination
        self._publishing = publishing
        self._holds = holds
        self._batch_size = batch_size
        self._next = self._next_free = 0.0

    def work(self, buckets: AbstractSet[int]) -> Exception | None:
        """Do what is due. Returns why the broker did not answer, if it did not.

        Raises:
            StoreError: the database failed.
        """
        now = time.monotonic()
        if now < self._next:
            return None
        lost = self._publishing.keep_alive()
        for _ in range(_MOST_MOVES):
            if self._store.move_due(buckets, self._destination, self._batch_size) < self._batch_size:
                break
        if now >= self._next_free:
            self._next_free = now + _FREE_S
            freed = self._store.free_unheld(buckets, self._destination)
            if freed:
                log.warning("outbox_messages_freed", extra={"messages": freed})
        unfenced = self._publishing.fence(buckets)
        failed = self._holds.retry(buckets)
        self._next = now + _EVERY_S
        return lost or unfenced or failed
