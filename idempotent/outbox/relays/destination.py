"""DestinationRelay: publishes the messages of an outbox that are for one broker."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final

from idempotent.errors import StoreError, described
from idempotent.forks import free_in_child
from idempotent.logs import EventLog
from idempotent.observe.observers import Observers
from idempotent.outbox.outbox import Outbox
from idempotent.outbox.relays.batches import Window, waves
from idempotent.outbox.relays.condition import Condition, Doing
from idempotent.outbox.relays.leases import BucketLeases
from idempotent.outbox.relays.publishing import Publishing
from idempotent.outbox.relays.settling import Deletions, Holds
from idempotent.outbox.store import Waiting
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
# One question to a server that takes longer is told, and counts as no answer.
_LONG_S: Final = 10.0
# A relay that waits longer for one answer is stuck: its health file gets old.
_STUCK_S: Final = 300.0
_UPKEEP_S: Final = 1.0
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
        leases: its buckets.
        woken: ends its wait for messages.
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
        self._condition = Condition(destination)
        self.leases: Final = BucketLeases(store, destination, owner, settings.lease_s)
        self._outbox = outbox
        self._settings = settings
        self._publishing = Publishing(
            adapter, self._condition, lambda taken, refused: observers.relayed(outbox.channel, taken, refused)
        )
        self._deletions = Deletions(store)
        self._holds = Holds(store, destination, settings.backoff, skips=settings.skips)
        self._window = Window(settings.batch_size * _READ_AHEAD)
        self._next_upkeep = self._next_free = 0.0
        self._store_answers = True
        self._failures = 0
        self.woken: Final = free_in_child(threading.Event())
        self._stopping = free_in_child(threading.Event())
        self._ends_at = math.inf
        self._thread: threading.Thread | None = None

    def look(self) -> str | None:
        """How it is, as a health file says it; None: it is stuck. For another thread, which asks no server.

        What waits long for one answer is told, unless the log says already why it waits.
        """
        doing, since = self._condition.now
        waited_s = time.monotonic() - since
        if doing is Doing.WAITS or waited_s < _LONG_S:
            if not self._store_answers:
                return STORE
            return READY if self._publishing.connected else CONNECTING
        if doing is Doing.STORE or not self._publishing.lost:
            self._condition.tell_hang(doing.value, waited_s)
        if waited_s >= _STUCK_S:
            return None
        return STORE if doing is Doing.STORE else CONNECTING

    def start(self) -> Future[None]:
        """Begin. The answer comes when the adapter is open, or could not be opened."""
        self._ends_at = math.inf
        self._stopping.clear()
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
        self.woken.set()

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
        self._outbox.committed.insert(0, self.woken.set)  # before those of other processes are told
        self.leases.start()
        try:
            self._publish_until_stopped()
        finally:
            self._outbox.committed.remove(self.woken.set)
            self.leases.stop()
            self._publishing.close()
            self._deletions.close()

    def _publish_until_stopped(self) -> None:
        wait_s = _SOON_S
        while not self._stopping.is_set():
            self.woken.clear()
            if self._step():
                wait_s = _SOON_S
                continue
            if self._failures:
                self._stopping.wait(min(0.1 * 2 ** min(self._failures, 10), _LONGEST_PAUSE_S))
            else:
                self.woken.wait(wait_s)
            wait_s = min(wait_s * 2, self._settings.poll_s)
        while self._step():
            continue  # what committed before the stop

    def _step(self) -> bool:
        """Publish a batch. False: there is nothing to publish now, or something failed."""
        try:
            with self._condition.doing(Doing.STORE):
                goes_on = self._publish_what_waits()
        except StoreError as error:
            self._store_answers = False
            self._condition.tell(error)
        except Exception as error:
            # A bug must not end it without a word: the messages would wait for ever.
            log.exception("relay_failed", extra={"error": described(error)})
        else:
            self._failures = 0
            self._store_answers = True
            if self._publishing.connected:
                self._condition.end()
            return goes_on
        self._failures += 1
        return False

    # What follows is the page: claim what waits in its buckets, publish it, settle each outcome.

    def _publish_what_waits(self) -> bool:
        self._deletions.finish()
        buckets = self.leases.buckets
        if time.monotonic() >= self._next_upkeep:
            self._keep_up(buckets)
            self._next_upkeep = time.monotonic() + _UPKEEP_S
        messages = self._holds.without_held(self._read(buckets))
        goes_on = bool(messages)
        for wave in waves(messages, self._settings.batch_size)[:_MOST_WAVES]:
            goes_on = time.monotonic() < self._ends_at and self._publish(wave)
            if not goes_on:
                break
        self._deletions.finish()
        return goes_on

    def _read(self, buckets: set[int]) -> list[Waiting]:
        """Claim: a row of a bucket that it has is its own, behind the bucket's fence if the broker has fences."""
        # Fenced before each read: what is published was read by the relay that has the buckets' fences.
        self._publishing.fence(buckets)
        if not buckets or not self._publishing.is_ready:
            return []
        limits = self._window.limits(buckets)
        messages = self._outbox.store.read(limits, self.destination)
        self._window.note(messages)
        # Small batches look at first where messages were the last time.
        return messages if messages or len(limits) == len(buckets) else self._read(buckets)

    def _publish(self, wave: Sequence[Waiting]) -> bool:
        """Publish messages of different lanes, and settle: what the broker accepted is deleted, what it refused held.

        What it did not answer about stays where it is. False: what was read after them must be read again.
        """
        mine = self.leases.buckets
        published = self._publishing.publish([message for message in wave if message.bucket in mine])
        # Behind fences a message must not come again after the next one, so it is deleted before that is published.
        delete = self._deletions.finish if self._publishing.has_fences else self._deletions.begin
        delete(published.accepted)
        self._holds.hold(published.refused)
        return published.answered and not published.refused

    def _retry(self, buckets: set[int]) -> None:
        """Publish the first messages of held lanes whose time has come, and settle: what follows them is freed too."""
        holds = self._holds.due(buckets)
        published = self._publishing.publish([hold.first for hold in holds if hold.first is not None])
        self._deletions.finish(published.accepted)
        done = {message.number for message in published.accepted}
        self._holds.let_go([hold for hold in holds if hold.first is None or hold.first.number in done])
        self._holds.hold(published.refused)

    def _keep_up(self, buckets: set[int]) -> None:
        """Keep the connection to the broker alive, release delayed messages, and try held ones again."""
        store, most = self._outbox.store, self._settings.batch_size
        self._publishing.keep_alive()
        if not buckets:
            return
        for _ in range(_MOST_MOVES):
            if store.move_due(buckets, self.destination, most) < most:
                break
        if time.monotonic() >= self._next_free:
            self._next_free = time.monotonic() + _FREE_S
            freed = store.free_unheld(buckets, self.destination)
            if freed:
                log.warning("outbox_messages_freed", extra={"messages": freed})
        self._publishing.fence(buckets)
        self._retry(buckets)
