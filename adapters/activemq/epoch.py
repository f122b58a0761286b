"""Epoch: the deliveries of one connection, and their settlements."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from idempotent.adapters.activemq.connection import StompConnection, Subscription
from idempotent.adapters.activemq.frames import DELAY_HEADER, message_of, unreadable
from idempotent.adapters.activemq.options import StompSettings
from idempotent.adapters.activemq.refusals import LostError
from idempotent.adapters.activemq.settling import CopyOf, Held, settling
from idempotent.adapters.base import Delivery
from idempotent.adapters.copies import number_in
from idempotent.adapters.reconnecting import describe
from idempotent.adapters.turns import Turns
from idempotent.errors import AdapterError
from idempotent.logs import EventLog

log = EventLog(__name__)


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
        dead_of: the destination for the dead letters of a destination.
    """

    def __init__(
        self,
        connection: StompConnection,
        settings: StompSettings,
        subscriptions: Sequence[Subscription],
        dead_of: Callable[[str], str],
    ) -> None:
        self.connection = connection
        self.missed_scheduler = False
        """Whether the broker delivered a delayed message at once, because it has no scheduler."""
        self._dead_of = dead_of
        self._began_at = time.monotonic()
        self._settling = settling(connection, settings)
        self._accept_empty = settings.accept_empty
        self._subscriptions = {subscription.id: subscription for subscription in subscriptions}
        self._numbers = itertools.count(1)
        self._handed_over: set[Token] = set()
        self._kept: list[tuple[float, int, Held]] = []
        self._turns: Turns[tuple[Held, bool]] = Turns()

    @property
    def age_s(self) -> float:
        """Seconds since the connection was established."""
        return time.monotonic() - self._began_at

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
        self._settling.done(token.held)
        self._handed_over.remove(token)

    def replaced(self, token: Token, copy: CopyOf) -> None:
        """Settle a delivery with a copy."""
        self._settling.replaced(token.held, copy)
        self._handed_over.remove(token)

    def refused(self, token: Token, copy: CopyOf) -> None:
        """Settle a delivery whose body cannot be read with a copy; the broker keeps the original."""
        self._settling.refused(token.held, copy)
        self._handed_over.remove(token)

    def keep(self, token: Token, delay_s: float) -> None:
        """Keep the message unacknowledged, and deliver it to the worker again after `delay_s` seconds."""
        self._handed_over.remove(token)
        self._keep(token.held, delay_s)

    def upkeep(self) -> None:
        """Send heartbeats, and the acknowledgements that have waited long enough."""
        self.connection.upkeep()
        self._settling.flush()

    def close(self) -> None:
        """Send the last acknowledgements, and disconnect when the broker has processed them."""
        try:
            self._settling.flush(at_once=True)
        except (LostError, AdapterError) as error:
            log.warning("last_acknowledgements_failed", extra={"error": describe(error)})
        self.connection.disconnect()

    def _collect(self) -> None:
        """Queue the kept messages that are due and those that have arrived."""
        while self._kept and self._kept[0][0] <= time.monotonic():
            held = heapq.heappop(self._kept)[2]
            self._turns.add(held.subscription.subject, (held, True))
        while (frame := self.connection.next_message()) is not None:
            held = Held(next(self._numbers), self._subscriptions[frame.headers["subscription"]], frame)
            self._settling.delivered(held)
            if DELAY_HEADER in frame.headers:
                # A scheduler would have delayed the message and removed the header.
                self._miss_scheduler()
                self._keep(held, number_in(frame.headers, DELAY_HEADER) / 1000)
            else:
                self._turns.add(held.subscription.subject, (held, False))

    def _hand_over(self, held: Held, *, redelivered: bool) -> Delivery:
        token = Token(held)
        self._handed_over.add(token)
        subject = held.subscription.subject
        message = message_of(held.frame, subject, token.destination, self._dead_of, redelivered=redelivered)
        return Delivery(message, token, None if self._accept_empty else unreadable(held.frame))

    def _keep(self, held: Held, delay_s: float) -> None:
        heapq.heappush(self._kept, (time.monotonic() + delay_s, held.number, held))

    def _miss_scheduler(self) -> None:
        if not self.missed_scheduler:
            log.warning(
                "broker_has_no_scheduler", extra={"remedy": 'schedulerSupport="true" in activemq.xml'}
            )
        self.missed_scheduler = True
