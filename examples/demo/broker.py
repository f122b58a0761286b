"""FlightBroker: at least once, with disorder and lost acknowledgements. PipeAdapter: its client in another process."""

from __future__ import annotations

import heapq
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import IO, Any, Final, NamedTuple

from examples.demo.consumers import SUBJECT
from examples.demo.flights import Flight
from idempotent.adapters.base import Adapter, Delivery
from idempotent.consumer import AnyConsumer
from idempotent.errors import AdapterError
from idempotent.message import Message
from idempotent.outcomes import Action, Outcome, Result

ACKS_LOST: Final = 0.001
"""The share of acknowledgements that never arrive."""
REDELIVERED_WITHIN: Final = 5_000
"""A message whose acknowledgement was lost is delivered again within this many deliveries."""
_PAUSE_S: Final = 0.02


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
    """Delivers flights by their numbers in `order`, some of them twice, until each delivery is acknowledged."""

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
            self._unsettled[self.delivered] = number
            parcels.append(Parcel(self.delivered, self._id_of(number), self._body_of(number), bool(again)))
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
            self.in_hand_at_crash[self._id_of(number)] += 1
            self._redeliver(number, within=2 * len(self._unsettled))
        self._unsettled.clear()

    def _id_of(self, number: int) -> str:
        return self._flights[number].flight

    def _body_of(self, number: int) -> str:
        return json.dumps(self._flights[number]._asdict())

    def _redeliver(self, number: int, *, within: int) -> None:
        heapq.heappush(self._again, (self.delivered + self._rng.randrange(within), number))
        self.expected += 1


class PipeAdapter(Adapter):
    """Asks the broker at the other end of two pipes, a line of JSON each way."""

    def __init__(self, source: IO[str], report: Callable[[Any], None], subject: str = SUBJECT) -> None:
        self._source = source
        self._report = report
        self._subject = subject
        self._answers: list[tuple[int, str | None]] = []
        self._finished = False
        self._woken = threading.Event()

    def open(self, consumers: Sequence[AnyConsumer]) -> None:
        """Nothing to do: the pipes are open."""

    def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
        """Report what was settled, and get the next deliveries."""
        deadline = time.monotonic() + timeout_s
        while True:
            if limit or self._answers:
                deliveries = self._ask(limit)
                if deliveries:
                    return deliveries
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._finished:
                return []
            # A pipe cannot be waited for together with `wake`, so an idle consumer asks again now and then.
            if self._woken.wait(min(left_s, _PAUSE_S)):
                self._woken.clear()
                return []

    def _acknowledge(self, delivery: Delivery, result: Result) -> bool:
        return self._answer(delivery, result.outcome)

    def _delay(self, delivery: Delivery, after_s: float) -> bool:
        del after_s
        return self._answer(delivery, Outcome.FAILED)

    def _dead_letter(self, delivery: Delivery, result: Result) -> bool:
        return self._answer(delivery, result.outcome)

    def _give_back(self, delivery: Delivery) -> bool:
        return self._answer(delivery, None)

    def _answer(self, delivery: Delivery, outcome: Outcome | None) -> bool:
        """Keep it for the next request, which carries the answers of a whole batch."""
        self._answers.append((delivery.token, outcome and outcome.value))
        return True

    def publish(self, message: Message) -> None:
        """Refuse: the flights come from the data set. Raises AdapterError, as every adapter that only reads."""
        raise AdapterError(f"{message.subject}: the demonstration takes its flights from the data set only")

    def wake(self) -> None:
        self._woken.set()

    @property
    def finished(self) -> bool:
        """The broker has nothing left."""
        return self._finished

    def close(self) -> None:
        """Report what was settled last."""
        if self._answers:
            self._ask(0)

    def _ask(self, limit: int) -> list[Delivery]:
        answers, self._answers = self._answers, []
        self._report([answers, limit])
        line = self._source.readline()
        if not line.endswith("\n"):
            sys.exit("the broker is gone")
        parcels, self._finished = json.loads(line)
        return [self._delivery(Parcel(*parcel)) for parcel in parcels]

    def _delivery(self, parcel: Parcel) -> Delivery:
        body = parcel.body.encode()
        message = Message(self._subject, body, id=parcel.message_id, redelivered=parcel.redelivered)
        return Delivery(message, parcel.tag)


def request_of(line: bytes) -> tuple[list[Answer], int]:
    """The consumer's request in a line: the answers to deliveries, and how many more it can take."""
    answers, limit = json.loads(line)
    return [Answer(tag, outcome and Outcome(outcome)) for tag, outcome in answers], limit
