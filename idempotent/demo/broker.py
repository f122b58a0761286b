"""FlightBroker: an at-least-once broker with copies, disorder and lost acknowledgements."""

from __future__ import annotations

import heapq
import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from idempotent.demo.flights import Flight
from idempotent.outcomes import Action, Outcome

ACKS_LOST: Final = 0.001
"""The share of acknowledgements that never arrive."""
REDELIVERED_WITHIN: Final = 5_000
"""A message whose acknowledgement was lost is delivered again within this many deliveries."""


class Parcel(NamedTuple):
    """One delivery on its way to the consumer."""

    tag: int
    message_id: str
    body: str
    redelivered: bool


class Answer(NamedTuple):
    """The consumer's answer to one delivery; no outcome: it gives the message back unprocessed."""

    tag: int
    outcome: Outcome | None


class FlightBroker:
    """Delivers flights until each delivery of `order` is acknowledged.

    Args:
        flights: the messages.
        order: their numbers in order of delivery, some of them twice.
        seed: decides which acknowledgements are lost.
    """

    def __init__(self, flights: Sequence[Flight], order: Sequence[int], *, seed: int) -> None:
        self._flights = flights
        self._order = order
        self._next = 0
        self._rng = random.Random(f"broker {seed}")
        self._again: list[tuple[int, int]] = []  # (the delivery at which it is due, the number of the flight)
        self._unsettled: dict[int, int] = {}
        self.delivered = 0
        self.expected = len(order)
        self.outcomes: Counter[Outcome] = Counter()
        self.unanswered = 0
        # How often a consumer died with this flight unanswered: a leased checker may repeat its booking as often.
        self.in_hand_at_crash: Counter[str] = Counter()

    @property
    def finished(self) -> bool:
        """Everything is delivered and acknowledged."""
        return self.nothing_new and not self._unsettled and not self._again

    @property
    def sent(self) -> int:
        """Deliveries so far, redeliveries not counted."""
        return self._next

    @property
    def nothing_new(self) -> bool:
        """Only redeliveries are left."""
        return self._next == len(self._order)

    @property
    def answered(self) -> int:
        """Deliveries with an outcome."""
        return self.outcomes.total()

    def deliver(self, limit: int) -> list[Parcel]:
        """Take the next deliveries, at most `limit`."""
        parcels: list[Parcel] = []
        while len(parcels) < limit:
            again = self._again and (self._again[0][0] <= self.delivered or self.nothing_new)
            if again:
                number = heapq.heappop(self._again)[1]
            elif not self.nothing_new:
                number = self._order[self._next]
                self._next += 1
            else:
                break
            flight = self._flights[number]
            self._unsettled[self.delivered] = number
            parcels.append(Parcel(self.delivered, flight.flight, json.dumps(flight._asdict()), bool(again)))
            self.delivered += 1
        return parcels

    def take(self, answers: Sequence[Answer]) -> None:
        """Act on the consumer's answers."""
        for tag, outcome in answers:
            number = self._unsettled.pop(tag)
            if outcome is not None:
                self.outcomes[outcome] += 1
            if outcome is None or outcome.action is Action.DELAY:
                self._redeliver(number, within=1)
            elif outcome.action is Action.ACK and self._rng.random() < ACKS_LOST:
                self._redeliver(number, within=REDELIVERED_WITHIN)

    def crash(self) -> None:
        """The consumer died: deliver what it had not answered again, soon and in another order."""
        self.unanswered += len(self._unsettled)
        for number in self._unsettled.values():
            self.in_hand_at_crash[self._flights[number].flight] += 1
            self._redeliver(number, within=2 * len(self._unsettled))
        self._unsettled.clear()

    def _redeliver(self, number: int, *, within: int) -> None:
        heapq.heappush(self._again, (self.delivered + self._rng.randrange(within), number))
        self.expected += 1
