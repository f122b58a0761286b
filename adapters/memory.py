"""A broker in this process, for tests and demos: MemoryBroker has the queues, MemoryAdapter is its client.

It delivers at least once, with the faults of real brokers on request.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from idempotent.adapters.base import Adapter, Delivery, subjects_of
from idempotent.adapters.copies import REASON_HEADER, reason_of, without_ours
from idempotent.consumer import AnyConsumer
from idempotent.errors import ConfigurationError
from idempotent.forks import free_in_child
from idempotent.message import Message
from idempotent.outcomes import Result
from idempotent.validation import check_types

_named: Final[dict[str, tuple[MemoryBroker, dict[str, Any]]]] = {}
_naming: Final = free_in_child(threading.Lock())


class Faults:
    """Decides by the seed and by a message's number, not by timing. `MemoryBroker` explains the arguments.

    A broker without faults computes no chances: they would take most of its time.

    Raises:
        ConfigurationError: a rate or number is out of its range.
    """

    def __init__(
        self, seed: int, *, duplicate_rate: float, reorder_window: int, redeliver_rate: float
    ) -> None:
        if not 0 <= duplicate_rate <= 1:
            raise ConfigurationError(f"duplicate_rate must be from 0 to 1, not {duplicate_rate}")
        if not 0 <= redeliver_rate < 1:
            raise ConfigurationError(f"redeliver_rate must be from 0 to below 1, not {redeliver_rate}")
        if reorder_window < 0:
            raise ConfigurationError(f"reorder_window must not be negative, not {reorder_window}")
        self._seed = seed
        self._duplicate_rate = duplicate_rate
        self._reorder_window = reorder_window
        self._redeliver_rate = redeliver_rate

    def duplicates(self, number: int) -> bool:
        """Whether this message arrives twice."""
        return bool(self._duplicate_rate) and self._chance(number, "duplicate") < self._duplicate_rate

    def order(self, number: int) -> float:
        """The place of this message in its queue."""
        if not self._reorder_window:
            return number
        return number + self._chance(number, "order") * self._reorder_window

    def loses_ack(self, number: int, returns: int) -> bool:
        """Whether the acknowledgement gets lost after the message was returned `returns` times."""
        return bool(self._redeliver_rate) and self._chance(number, f"ack-{returns}") < self._redeliver_rate

    def _chance(self, number: int, what: str) -> float:
        """A number from 0 to below 1 that depends only on the seed and the arguments."""
        digest = hashlib.blake2b(f"{self._seed}:{number}:{what}".encode(), digest_size=6).digest()
        return int.from_bytes(digest, "big") / 2**48


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that the broker dead-lettered, and why."""

    message: Message
    reason: str


@dataclass(slots=True)
class Copy:
    """One message in a queue. A producer that sends twice makes two.

    Attributes:
        message: as published.
        number: its place in the order of publication, over all queues.
        order: its place in its queue.
        returns: how often it was delivered and returned unsettled, or its acknowledgement was lost.
        seen: whether it was delivered before.
        letter: the dead letter that it carries; None for a message that is not a dead letter.
    """

    message: Message
    number: int
    order: float
    returns: int = 0
    seen: bool = False
    letter: DeadLetter | None = None


@dataclass(slots=True)
class _Queue:
    ready: list[tuple[float, int, Copy]] = field(default_factory=list)
    delayed: list[tuple[float, int, Copy]] = field(default_factory=list)
    unsettled: int = 0


def dead_letter_queue(subject: str) -> str:
    """The name of the queue for the dead letters of a queue."""
    return f"{subject}.dead"


class MemoryBroker:
    """An at-least-once broker for tests and demos. Thread-safe.

    Its faults depend on the seed and on a message's place in the order of publication, not on timing: the same
    seed duplicates, displaces and redelivers the same messages in every run.

    Args:
        seed: of all the faults.
        duplicate_rate: share of the messages, 0 to 1, that arrive twice, as if their producer had resent them.
        reorder_window: how many places, at most, a message can fall behind.
        redeliver_rate: share of the acknowledgements, 0 to below 1, that get lost: the messages are delivered again.
        max_deliveries: unsettled deliveries of one message after which it is a dead letter; None: no limit. A delay
            on request resets the count.
        clock: seconds; injectable for tests of delays.

    Raises:
        ConfigurationError: a rate or number is out of its range.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        duplicate_rate: float = 0.0,
        reorder_window: int = 0,
        redeliver_rate: float = 0.0,
        max_deliveries: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_types(MemoryBroker, locals())
        if max_deliveries is not None and max_deliveries < 1:
            raise ConfigurationError(f"max_deliveries must be at least 1 or None, not {max_deliveries}")
        self._faults = Faults(
            seed,
            duplicate_rate=duplicate_rate,
            reorder_window=reorder_window,
            redeliver_rate=redeliver_rate,
        )
        self._max_deliveries = max_deliveries
        self._clock = clock
        self._changed = free_in_child(threading.Condition())
        self._queues: defaultdict[str, _Queue] = defaultdict(_Queue)
        self._numbers = itertools.count()
        self._epochs = itertools.count(1)
        self._unsettled: dict[int, dict[int, Copy]] = {}

    # For applications and tests

    def publish(self, message: Message) -> None:
        """Put a message into the queue of its subject, and possibly a second copy of it."""
        message = replace(message, headers=without_ours(message.headers))
        with self._changed:
            number = self._enqueue(message)
            if self._faults.duplicates(number):
                self._enqueue(message)
            self._changed.notify_all()

    def crash(self) -> None:
        """Lose every connection: unsettled messages are delivered again, and late settlements are stale."""
        with self._changed:
            for epoch in list(self._unsettled):
                self._disconnect(epoch)
            self._changed.notify_all()

    def dead_letters(self, subject: str) -> list[DeadLetter]:
        """The dead letters of a queue, oldest first. They wait in `dead_letter_queue(subject)`."""
        with self._changed:
            copies = [copy for _, _, copy in sorted(self._queues[dead_letter_queue(subject)].ready)]
            return [copy.letter for copy in copies if copy.letter is not None]

    def backlog(self, subject: str) -> int:
        """Copies in a queue that are not settled: ready, delayed, or with a consumer."""
        with self._changed:
            queue = self._queues[subject]
            return len(queue.ready) + len(queue.delayed) + queue.unsettled

    # For MemoryAdapter

    def connect(self) -> int:
        """Open a connection. Returns its epoch."""
        with self._changed:
            epoch = next(self._epochs)
            self._unsettled[epoch] = {}
            return epoch

    def disconnect(self, epoch: int) -> None:
        """Close a connection: its unsettled messages are delivered again."""
        with self._changed:
            self._disconnect(epoch)
            self._changed.notify_all()

    def is_connected(self, epoch: int) -> bool:
        """Whether this connection is open."""
        return epoch in self._unsettled

    def take(self, epoch: int, subjects: Collection[str], limit: int) -> list[Copy]:
        """At most `limit` copies that are due, without waiting; none on a lost connection."""
        with self._changed:
            held = self._unsettled.get(epoch)
            taken: list[Copy] = []
            if held is None:
                return taken
            for subject in subjects:
                queue = self._queues[subject]
                self._ripen(queue)
                while queue.ready and len(taken) < limit:
                    copy = heapq.heappop(queue.ready)[2]
                    taken.append(copy)
                    held[copy.number] = copy
                    queue.unsettled += 1
            return taken

    def wait(self, subjects: Collection[str], timeout_s: float, is_woken: Callable[[], bool]) -> None:
        """Wait until something may be due in one of the queues, at most `timeout_s`."""
        until = time.monotonic() + timeout_s
        with self._changed:
            while not is_woken() and not any(self._queues[subject].ready for subject in subjects):
                dues = [due for subject in subjects for due, _, _ in self._queues[subject].delayed[:1]]
                due_in_s = min(dues, default=float("inf")) - self._clock()
                left_s = min(until - time.monotonic(), due_in_s)
                if left_s <= 0:
                    return
                self._changed.wait(left_s)

    def notify(self) -> None:
        """Wake every thread in `wait`."""
        with self._changed:
            self._changed.notify_all()

    def acknowledge(self, epoch: int, number: int) -> bool:
        """Remove a copy, unless this acknowledgement is to get lost. False: the delivery is stale."""
        with self._changed:
            copy = self._taken_back(epoch, number)
            if copy is not None and self._faults.loses_ack(number, copy.returns):
                self._return(copy)
            self._changed.notify_all()
            return copy is not None

    def delay(self, epoch: int, number: int, delay_s: float) -> bool:
        """Deliver a copy again after `delay_s` seconds. False: the delivery is stale."""
        with self._changed:
            copy = self._taken_back(epoch, number)
            if copy is not None:
                copy.returns = 0
                queue = self._queues[copy.message.subject]
                heapq.heappush(queue.delayed, (self._clock() + delay_s, number, copy))
            self._changed.notify_all()
            return copy is not None

    def bury(self, epoch: int, number: int, reason: str) -> bool:
        """Make a copy a dead letter. False: the delivery is stale."""
        with self._changed:
            copy = self._taken_back(epoch, number)
            if copy is not None:
                self._bury(copy, reason)
            self._changed.notify_all()
            return copy is not None

    def letter(self, epoch: int, number: int) -> DeadLetter | None:
        """The dead letter that a delivered copy carries; None: none, or the delivery is stale."""
        with self._changed:
            copy = self._unsettled.get(epoch, {}).get(number)
            return None if copy is None else copy.letter

    def give_back(self, epoch: int, number: int) -> bool:
        """Deliver a copy again, as soon as possible. False: the delivery is stale."""
        with self._changed:
            copy = self._taken_back(epoch, number)
            if copy is not None:
                self._return(copy)
            self._changed.notify_all()
            return copy is not None

    # Private, under the lock

    def _enqueue(self, message: Message) -> int:
        number = next(self._numbers)
        order = self._faults.order(number)
        queue = self._queues[message.subject]
        heapq.heappush(queue.ready, (order, number, Copy(message, number, order)))
        return number

    def _ripen(self, queue: _Queue) -> None:
        now = self._clock()
        while queue.delayed and queue.delayed[0][0] <= now:
            _, number, copy = heapq.heappop(queue.delayed)
            heapq.heappush(queue.ready, (copy.order, number, copy))

    def _taken_back(self, epoch: int, number: int) -> Copy | None:
        copy = self._unsettled.get(epoch, {}).pop(number, None)
        if copy is not None:
            copy.seen = True
            self._queues[copy.message.subject].unsettled -= 1
        return copy

    def _return(self, copy: Copy) -> None:
        copy.returns += 1
        queue = self._queues[copy.message.subject]
        if self._max_deliveries is not None and copy.returns >= self._max_deliveries:
            self._bury(copy, f"delivered {copy.returns} times and never settled")
        else:
            heapq.heappush(queue.ready, (copy.order, copy.number, copy))

    def _bury(self, copy: Copy, reason: str) -> None:
        message = copy.message
        dead = replace(message, subject=dead_letter_queue(message.subject))
        number = next(self._numbers)
        letter = Copy(dead, number, number, letter=DeadLetter(message, reason))
        heapq.heappush(self._queues[dead.subject].ready, (number, number, letter))

    def _disconnect(self, epoch: int) -> None:
        for number in list(self._unsettled.get(epoch, {})):
            copy = self._taken_back(epoch, number)
            if copy is not None:
                self._return(copy)
        self._unsettled.pop(epoch, None)


def named_broker(name: str, **options: Any) -> MemoryBroker:
    """The broker of this name in this process, made at the first call.

    Raises:
        ConfigurationError: it exists with other options.
    """
    with _naming:
        if name not in _named:
            _named[name] = (MemoryBroker(**options), options)
        broker, made_with = _named[name]
    if options and options != made_with:
        raise ConfigurationError(f"memory://{name} exists already, with the options {made_with}")
    return broker


@dataclass(frozen=True, slots=True)
class _Token:
    epoch: int
    number: int


class MemoryAdapter(Adapter):
    """Receive from, and publish to, a broker in this process. Reconnects automatically.

    Args:
        broker: may be shared by several adapters.
        until_empty: finish, and so end the worker, as soon as the queues are empty.
    """

    token_type = _Token
    also_made = (MemoryBroker,)

    def __init__(self, broker: MemoryBroker, *, until_empty: bool = False) -> None:
        """Connect in `open`."""
        check_types(MemoryAdapter, locals())
        self.broker = broker
        self._until_empty = until_empty
        self._subjects: list[str] = []
        self._epoch = 0
        self._woken = False

    @classmethod
    def from_url(cls, url: str, *, until_empty: bool = False, **options: Any) -> MemoryAdapter:
        parts = urlsplit(url)
        return cls(named_broker(unquote(parts.netloc + parts.path), **options), until_empty=until_empty)

    def open(self, consumers: Sequence[AnyConsumer]) -> None:
        self._subjects = subjects_of(consumers)
        self._epoch = self.broker.connect()

    def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
        if not self._epoch:
            raise ConfigurationError("open() comes before receive()")
        if not self.broker.is_connected(self._epoch):
            self._epoch = self.broker.connect()
        subjects = [subject for subject in self._subjects if subject not in self.full_subjects]
        copies = self.broker.take(self._epoch, subjects, limit)
        if not copies and timeout_s > 0:
            self.broker.wait(subjects if limit else (), timeout_s, lambda: self._woken)
            copies = self.broker.take(self._epoch, subjects, limit)
        self._woken = False
        # The queues take turns, so that a full one does not starve the others.
        self._subjects = self._subjects[1:] + self._subjects[:1]
        return [self._delivery(copy) for copy in copies]

    def _acknowledge(self, delivery: Delivery, result: Result) -> bool:
        del result
        return self.broker.acknowledge(delivery.token.epoch, delivery.token.number)

    def _delay(self, delivery: Delivery, after_s: float) -> bool:
        return self.broker.delay(delivery.token.epoch, delivery.token.number, after_s)

    def _dead_letter(self, delivery: Delivery, result: Result) -> bool:
        return self.broker.bury(delivery.token.epoch, delivery.token.number, reason_of(result))

    def _give_back(self, delivery: Delivery) -> bool:
        return self.broker.give_back(delivery.token.epoch, delivery.token.number)

    def publish(self, message: Message) -> None:
        self.broker.publish(message)

    def written_on(self, letter: Delivery) -> Mapping[str, Any]:
        found = self.broker.letter(letter.token.epoch, letter.token.number)
        return {} if found is None else {REASON_HEADER: found.reason}

    def dead_letter_subject(self, subject: str) -> str:
        return dead_letter_queue(subject)

    def wake(self) -> None:
        self._woken = True
        self.broker.notify()

    @property
    def finished(self) -> bool:
        return self._until_empty and not any(map(self.broker.backlog, self._subjects))

    def close(self) -> None:
        if self._epoch:
            self.broker.disconnect(self._epoch)

    def _delivery(self, copy: Copy) -> Delivery:
        message = replace(copy.message, redelivered=copy.seen, position=copy.number)
        return Delivery(message, _Token(self._epoch, copy.number))
