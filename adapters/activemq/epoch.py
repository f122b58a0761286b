"""Epoch: the deliveries of one connection, and their settlements."""

from __future__ import annotations

import heapq
import itertools
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from idempotent.adapters.activemq.connection import StompConnection, Subscription
from idempotent.adapters.activemq.copying import Copies, Copy, CopyBackoff, CopyOf, Held
from idempotent.adapters.activemq.frames import DELAY_HEADER, Frame, message_of, only_for, unreadable
from idempotent.adapters.activemq.lines import Line
from idempotent.adapters.activemq.options import AckMode, StompSettings, is_topic
from idempotent.adapters.activemq.refusals import CopyLostError, LostError
from idempotent.adapters.base import Delivery
from idempotent.adapters.copies import number_in
from idempotent.adapters.fair_queue import FairQueue
from idempotent.adapters.reconnecting import DOUBT_AFTER_S, describe
from idempotent.adapters.watermark import Watermark
from idempotent.errors import AdapterError
from idempotent.logs import EventLog

log = EventLog(__name__)

_LAST_COPIES_S: Final = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """One delivery of one message to the worker, valid only in the epoch that created it."""

    held: Held

    @property
    def destination(self) -> str:
        """The destination of the message."""
        return self.held.subscription.destination


class Epoch:
    """The deliveries of one connection. Its methods raise LostError when the connection is lost.

    Args:
        connection: open and subscribed.
        settings: of the acknowledgements.
        subscriptions: of the connection.
        publishing: a line that acknowledges nothing, for copies.
        copy_backoff: when a copy is sent again.
        dead_of: the destination for the dead letters of a destination.
    """

    def __init__(
        self,
        connection: StompConnection,
        settings: StompSettings,
        subscriptions: Sequence[Subscription],
        publishing: Line,
        copy_backoff: CopyBackoff,
        dead_of: Callable[[str], str],
    ) -> None:
        self.connection = connection
        self.missed_scheduler = False
        """Whether the broker delivered a delayed message at once, because it has no scheduler."""
        self._dead_of = dead_of
        self._copy_backoff = copy_backoff
        self._copies = Copies(publishing, copy_backoff, self._keep)
        self._settling = settling(connection, settings)
        self._accept_empty = settings.accept_empty
        self._is_durable = settings.durable_subscription is not None
        self._subscriptions = {subscription.id: subscription for subscription in subscriptions}
        self._numbers = itertools.count(1)
        self._handed_over: set[Token] = set()
        self._unsettled: set[Held] = set()
        self._heard_at = dict.fromkeys(self._subscriptions, time.monotonic())
        self._kept: list[tuple[float, int, Held]] = []
        self._turns: FairQueue[tuple[Held, bool]] = FairQueue()

    def take(self, limit: int, full: Container[str]) -> list[Delivery]:
        """At most `limit` deliveries of subjects that are not `full`, without waiting."""
        self._collect()
        found: list[Delivery] = []
        while len(found) < limit and (turn := self._turns.take(full)) is not None:
            held, redelivered = turn
            found.append(self._hand_over(held, redelivered=redelivered))
        return found

    def holds(self, token: Token) -> bool:
        """Whether this delivery belongs to this epoch and is not settled."""
        return token in self._handed_over

    def done(self, token: Token) -> None:
        """Settle a delivery with an acknowledgement."""
        self._settle(token.held, self._settling.done)
        self._handed_over.remove(token)

    def replaced(self, token: Token, copy: CopyOf, due_at: float = 0.0) -> None:
        """Settle a delivery with a copy.

        Args:
            token: of the delivery.
            copy: makes the copy.
            due_at: when the message may be delivered again, in seconds of the monotonic clock.
        """
        held = token.held
        if self._must_wait(token, due_at):
            return
        if isinstance(self._settling, Transacted):
            self._settle(held, partial(self._settling.replaced, copy=copy))
            self._copy_backoff.copied(held.position)
        else:
            self._copies.send(Copy(held, copy, due_at, partial(self._settle, held, self._settling.done)))
        self._handed_over.remove(token)

    def refused(self, token: Token, copy: CopyOf) -> None:
        """Settle a delivery whose body cannot be read with a copy; the broker keeps the original."""
        if not self._must_wait(token):
            act = partial(self._settle, token.held, self._settling.refused)
            self._copies.send(Copy(token.held, copy, 0.0, act))
            self._handed_over.remove(token)

    def keep(self, token: Token, delay_s: float) -> None:
        """Keep the message unacknowledged, and deliver it to the worker again after `delay_s` seconds."""
        self._handed_over.remove(token)
        self._keep(token.held, delay_s)

    def upkeep(self) -> None:
        """Send what has waited long enough: acknowledgements and copies; renew what has long been silent."""
        self._copies.upkeep()
        self._settling.flush()
        for identity, heard_at in list(self._heard_at.items()):
            if time.monotonic() - heard_at > DOUBT_AFTER_S:
                self._doubt(self._subscriptions[identity])

    def close(self) -> None:
        """Wait a short time for the copies, so that no original comes again, and send the last acknowledgements."""
        until = time.monotonic() + _LAST_COPIES_S
        try:
            while self._copies and time.monotonic() < until:
                self.connection.upkeep()
                self.upkeep()
                self._copies.pause()
            self._settling.flush(at_once=True)
        except (LostError, AdapterError) as error:
            log.warning("last_acknowledgements_failed", extra={"error": describe(error)})

    def _must_wait(self, token: Token, due_at: float = 0.0) -> bool:
        """Whether earlier copies of a message failed. Then it waits here, and is handed to the worker again."""
        wait_s = self._copy_backoff.wait_s(token.held.position)
        if wait_s > 0:
            self.keep(token, max(wait_s, due_at - time.monotonic()))
        return wait_s > 0

    def _collect(self) -> None:
        """Queue the kept messages that are due and those that have arrived."""
        while self._kept and self._kept[0][0] <= time.monotonic():
            held = heapq.heappop(self._kept)[2]
            self._turns.add(held.subscription.subject, (held, True))
        while (frame := self.connection.next_message()) is not None:
            subscription = self._subscriptions.get(frame.headers["subscription"])
            if subscription is None:
                continue  # sent just before it was renewed: the broker delivers it again
            held = Held(next(self._numbers), subscription, frame)
            self._heard_at[subscription.id] = time.monotonic()
            self._unsettled.add(held)
            self._settling.delivered(held)
            if DELAY_HEADER in frame.headers:
                # A scheduler would have delayed the message and removed the header.
                self._miss_scheduler()
                self._keep(held, number_in(frame.headers, DELAY_HEADER) / 1000)
            else:
                self._turns.add(held.subscription.subject, (held, False))

    def _settle(self, held: Held, act: Callable[[Held], None]) -> None:
        act(held)
        self._unsettled.remove(held)

    def _doubt(self, old: Subscription) -> None:
        """Renew a silent subscription: ActiveMQ removes one without a word, and answers nothing to its late ACKs.

        One of which a message is unsettled is left for later, and one that would miss messages meanwhile for ever.
        """
        is_busy = any(held.subscription == old for held in self._unsettled)
        if is_busy or (is_topic(old.destination) and not self._is_durable):
            self._heard_at[old.id] = time.monotonic()
            return
        new = replace(old, id=f"renewed-{next(self._numbers)}")
        self._settling.flush(at_once=True)
        self.connection.renew(old, new)
        del self._subscriptions[old.id], self._heard_at[old.id]
        self._subscriptions[new.id], self._heard_at[new.id] = new, time.monotonic()

    def _hand_over(self, held: Held, *, redelivered: bool) -> Delivery:
        token = Token(held)
        self._handed_over.add(token)
        subject = held.subscription.subject
        message = message_of(held.frame, subject, token.destination, self._dead_of, redelivered=redelivered)
        error = None if self._accept_empty else unreadable(held.frame)
        return Delivery(message, token, error, only_for(held.frame, token.destination, self._dead_of))

    def _keep(self, held: Held, delay_s: float) -> None:
        heapq.heappush(self._kept, (time.monotonic() + delay_s, held.number, held))

    def _miss_scheduler(self) -> None:
        if not self.missed_scheduler:
            log.warning(
                "broker_has_no_scheduler", extra={"remedy": 'schedulerSupport="true" in activemq.xml'}
            )
        self.missed_scheduler = True


class Settling(ABC):
    """The acknowledgements of one connection. Its methods raise LostError and RefusedError."""

    def __init__(self, connection: StompConnection, settings: StompSettings) -> None:
        self._connection = connection
        self._settings = settings

    def delivered(self, held: Held) -> None:  # noqa: B027 - only some modes keep count
        """Note a received message, in the order of arrival."""

    @abstractmethod
    def done(self, held: Held) -> None:
        """Acknowledge a message, now or soon."""

    def refused(self, held: Held) -> None:
        """NACK: the broker moves this message alone to its own dead-letter queue. A transaction cannot include it."""
        self._acknowledge(held.ack_id, "NACK")

    def flush(self, *, at_once: bool = False) -> None:  # noqa: B027 - only some modes wait
        """Send the due acknowledgements; with `at_once`, all of them."""

    def _acknowledge(self, ack_id: str, command: str = "ACK") -> None:
        frame = Frame(command, {"id": ack_id})
        if self._settings.receipts:
            self._connection.confirm([frame], command)
        else:
            self._connection.send(frame)


class OneByOne(Settling):
    """Acknowledges each message alone, at once.

    Not in one transaction: ActiveMQ (5.17.2) keeps each message that a `client-individual` subscription acknowledged
    in a transaction in memory until the subscription ends, and finally runs out of memory.
    """

    def done(self, held: Held) -> None:
        self._acknowledge(held.ack_id)


class Cumulative(Settling):
    """Acknowledges a message with all before it, at once or in groups."""

    def __init__(self, connection: StompConnection, settings: StompSettings) -> None:
        super().__init__(connection, settings)
        self._marks: dict[Subscription, Watermark[Held]] = {}
        self._sent: dict[Subscription, Held | None] = {}
        self._waiting: Counter[Subscription] = Counter()
        self._flushed_at = time.monotonic()

    def delivered(self, held: Held) -> None:
        self._marks.setdefault(held.subscription, Watermark()).add(held)

    def done(self, held: Held) -> None:
        self._marks[held.subscription].finish(held)
        self._waiting[held.subscription] += 1
        self.flush()

    def refused(self, held: Held) -> None:
        super().refused(held)
        self._marks[held.subscription].discard(held)
        self._waiting[held.subscription] += 1
        self.flush()

    def flush(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        timed_out = now - self._flushed_at >= self._settings.optimize_ack_timeout_s
        for subscription in [one for one, count in self._waiting.items() if count]:
            if at_once or timed_out or self._is_due(subscription):
                self._flush(subscription)
        if timed_out:
            self._flushed_at = now

    def _is_due(self, subscription: Subscription) -> bool:
        if not self._settings.is_grouped:
            return True
        return self._waiting[subscription] >= self._settings.group_of(subscription.destination)

    def _flush(self, subscription: Subscription) -> None:
        last = self._marks[subscription].last
        if last is not None and last is not self._sent.get(subscription):
            self._send(subscription, last)
            self._sent[subscription] = last
            self._flushed_at = time.monotonic()
        # Messages finished behind an unfinished one wait for that one, not for a full group.
        self._waiting[subscription] = 0

    def _send(self, subscription: Subscription, last: Held) -> None:
        del subscription
        self._acknowledge(last.ack_id)


class Transacted(Cumulative):
    """Acknowledges in order, in confirmed transactions that include the copies."""

    def __init__(self, connection: StompConnection, settings: StompSettings) -> None:
        super().__init__(connection, settings)
        self._copies: defaultdict[Subscription, list[tuple[Held, CopyOf]]] = defaultdict(list)

    def done(self, held: Held) -> None:
        self._marks[held.subscription].finish(held)
        self._waiting[held.subscription] += 1

    def replaced(self, held: Held, copy: CopyOf) -> None:
        """Acknowledge a message in one transaction with its copy."""
        self._copies[held.subscription].append((held, copy))
        self.done(held)
        self.flush()

    def _send(self, subscription: Subscription, last: Held) -> None:
        copies = self._copies[subscription]
        ready = [pair for pair in copies if pair[0].number <= last.number]
        made = [(held.position, copy()) for held, copy in ready]
        with _copying({position: frame.headers["destination"] for position, frame in made}):
            steps = [*(frame for _, frame in made), Frame("ACK", {"id": last.ack_id})]
            self._connection.transact(steps, "a transaction")
        self._copies[subscription] = [pair for pair in copies if pair[0].number > last.number]


@contextmanager
def _copying(copies: Mapping[str, str]) -> Iterator[None]:
    """Turn a lost connection into CopyLostError: one of the copies may have caused it."""
    try:
        yield
    except LostError as error:
        if copies:
            raise CopyLostError(error, copies) from error
        raise


def settling(connection: StompConnection, settings: StompSettings) -> Settling:
    """The Settling of a mode."""
    if settings.ack is AckMode.TRANSACTED:
        return Transacted(connection, settings)
    if settings.is_cumulative:
        return Cumulative(connection, settings)
    return OneByOne(connection, settings)
