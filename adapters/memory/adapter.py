"""MemoryAdapter: the client of a MemoryBroker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote, urlsplit

from idempotent.adapters.base import Adapter, Delivery, reason_of, subjects_of
from idempotent.adapters.memory.broker import Copy, MemoryBroker, dead_letter_queue, named_broker
from idempotent.consumer import AnyConsumer
from idempotent.errors import ConfigurationError
from idempotent.message import Message
from idempotent.outcomes import Result
from idempotent.validation import check_types


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
