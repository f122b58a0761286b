"""PipeAdapter: the demo's broker as its consumer sees it, over the pipes of the consuming process."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Sequence
from typing import IO, Any, Final, NamedTuple

from idempotent.adapters.base import Adapter, Delivery
from idempotent.consumer import Consumer
from idempotent.demo.broker import Answer, Parcel
from idempotent.demo.consumers import SUBJECT
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result

_PAUSE_S: Final = 0.02


class Request(NamedTuple):
    """Consumer to broker: what became of deliveries, and how many more it can take."""

    answers: list[Answer]
    limit: int


class Reply(NamedTuple):
    """Broker to consumer."""

    parcels: list[Parcel]
    finished: bool


def send(pipe: IO[bytes], value: Any) -> None:
    """Write one value. Both ends are the same program on the same machine, which is when pickle is safe."""
    pickle.dump(value, pipe, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """Read one value.

    Raises:
        EOFError: the other end is closed.
    """
    try:
        return pickle.load(pipe)  # noqa: S301 - see `send`
    except pickle.UnpicklingError as error:
        raise EOFError("the other end died in the middle of a word") from error


class PipeAdapter(Adapter):
    """Asks the broker at the other end of two pipes.

    Args:
        source: where the broker's replies come from.
        sink: where requests go.
    """

    def __init__(self, source: IO[bytes], sink: IO[bytes]) -> None:
        self._source = source
        self._sink = sink
        self._answers: list[Answer] = []
        self._finished = False
        self._woken = threading.Event()

    def open(self, consumers: Sequence[Consumer]) -> None:
        """Nothing to do: the pipes are open."""

    def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
        """Tell what was settled, and get the next deliveries."""
        deadline = time.monotonic() + timeout_s
        while True:
            if limit or self._answers:
                parcels = self._ask(limit)
                if parcels:
                    return [_delivery(parcel) for parcel in parcels]
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
        self._answers.append(Answer(delivery.token, outcome))
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
        """Tell what was settled last."""
        if self._answers:
            self._ask(0)

    def _ask(self, limit: int) -> list[Parcel]:
        answers, self._answers = self._answers, []
        send(self._sink, Request(answers, limit))
        reply: Reply = receive(self._source)
        self._finished = reply.finished
        return reply.parcels


def _delivery(parcel: Parcel) -> Delivery:
    message = Message(SUBJECT, parcel.body, id=parcel.message_id, redelivered=parcel.redelivered)
    return Delivery(message, parcel.tag)
