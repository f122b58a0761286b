"""Settling: settles and requeues a worker's deliveries, and counts them for the WorkerSummary."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from idempotent.consumer import AnyConsumer
from idempotent.logs import EventLog
from idempotent.message import Message
from idempotent.observe.events import Stage
from idempotent.observe.observers import Observers
from idempotent.outcomes import ACK, Outcome, Result
from idempotent.worker.holds import InFlightDelivery
from idempotent.worker.message_log import MessageLog

if TYPE_CHECKING:
    from idempotent.adapters.base import Adapter, Delivery

log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class WorkerSummary:
    """What a worker did.

    Attributes:
        outcomes: settled deliveries by outcome.
        requeued: deliveries given back: not started, held, or cancelled when the worker stopped, or held for too long.
        abandoned: deliveries whose handlers still ran in the end, or waited for one that did: threads, and tasks that
            refused to be cancelled. The broker delivers them again.
        stale: settlements after the delivery's connection was lost. The broker delivers those messages again.
        unrecorded: completions and releases that the store had not recorded at the end of the drain. Other workers may
            repeat these effects.
    """

    outcomes: Mapping[Outcome, int]
    requeued: int
    abandoned: int
    stale: int
    unrecorded: int = 0

    def __getitem__(self, outcome: Outcome) -> int:
        return self.outcomes.get(outcome, 0)

    @property
    def settled(self) -> int:
        """Settled deliveries of every outcome."""
        return sum(self.outcomes.values())

    def as_extra(self) -> dict[str, int]:
        """All numbers, as the data of a log record."""
        counts = {outcome.value: count for outcome, count in self.outcomes.items()}
        return {
            **counts,
            "requeued": self.requeued,
            "abandoned": self.abandoned,
            "stale": self.stale,
            "unrecorded": self.unrecorded,
        }


class Settling:
    """The settlements of one worker. Only the thread that owns the adapter may use it.

    Args:
        adapter: whose deliveries are settled.
        observers: those of the registry.
        messages: logs what did not end well.
        on_result: called with each settled message; None: nothing is called.
    """

    def __init__(
        self,
        adapter: Adapter,
        observers: Observers,
        messages: MessageLog,
        on_result: Callable[[Message, Result], object] | None,
    ) -> None:
        """Settle nothing yet."""
        self._adapter: Final = adapter
        self._observers: Final = observers
        self._log: Final = messages
        self._on_result: Final = on_result
        self._outcomes: Counter[Outcome] = Counter()
        self._requeued = 0

    def settle(self, delivery: Delivery, consumer: AnyConsumer | None, result: Result) -> None:
        """Settle a delivery, and tell those who want to know. `consumer`: None if no consumer has its subject.

        Raises:
            AdapterError: unrecoverable: the worker stops.
        """
        observers = self._observers
        if observers.watch_settling:
            observers.settling(delivery.message, result)
        began = time.perf_counter() if observers.watch_times else None
        self._adapter.settle(delivery, result)
        if began is not None and consumer is not None:
            observers.timed(consumer.name, ((Stage.SETTLE, time.perf_counter() - began, 1),))
        self._outcomes[result.outcome] += 1
        if result.action is not ACK:
            self._log.not_acknowledged(consumer, delivery.message, result)
        self._log.settled(consumer, delivery.message, result)
        if observers.watch_settled:
            observers.settled(delivery.message, result)
        if self._on_result is not None:
            try:
                self._on_result(delivery.message, result)
            except Exception:
                # A broken progress bar must not stop the messages.
                log.exception("on_result_failed")

    def requeue(self, work: InFlightDelivery) -> None:
        """Return a delivery unprocessed.

        Raises:
            AdapterError: unrecoverable: the worker stops.
        """
        self._adapter.requeue(work.delivery)
        self._log.returned(work)
        self._requeued += 1

    def summary(self, abandoned: int, unrecorded: int) -> WorkerSummary:
        """What the worker did."""
        outcomes = MappingProxyType(dict(self._outcomes))
        return WorkerSummary(outcomes, self._requeued, abandoned, self._adapter.stale_settlements, unrecorded)
