"""PipeAdapter: the demo's broker as its consumer sees it, through the pipes of the consuming process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from typing import IO, Final

from idempotent.adapters.base import Adapter, Delivery
from idempotent.consumer import Consumer
from idempotent.demo.broker import Answer, Parcel
from idempotent.demo.consumers import SUBJECT
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result

_PAUSE_S: Final = 0.02


class PipeAdapter(Adapter):
    """Asks the broker at the other end of two pipes, a line of JSON each way.

    Args:
        source: gives the broker's replies.
        sink: takes the requests.
    """

    def __init__(self, source: IO[str], sink: IO[str]) -> None:
        self._source = source
        self._sink = sink
        self._answers: list[tuple[int, str | None]] = []
        self._finished = False
        self._woken = threading.Event()

    def open(self, consumers: Sequence[Consumer]) -> None:
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
        """The demo's flights come from its data set only."""
        raise NotImplementedError

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
        print(json.dumps([answers, limit]), file=self._sink, flush=True)
        line = self._source.readline()
        if not line.endswith("\n"):
            raise EOFError("the broker is gone")
        parcels, self._finished = json.loads(line)
        return [_delivery(Parcel(*parcel)) for parcel in parcels]


def request_of(line: bytes) -> tuple[list[Answer], int]:
    """The consumer's request in a line: the answers to deliveries, and how many more it can take."""
    answers, limit = json.loads(line)
    return [Answer(tag, outcome and Outcome(outcome)) for tag, outcome in answers], limit


def _delivery(parcel: Parcel) -> Delivery:
    message = Message(SUBJECT, parcel.body.encode(), id=parcel.message_id, redelivered=parcel.redelivered)
    return Delivery(message, parcel.tag)
