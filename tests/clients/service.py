"""A service that consumes what other clients send, and counts its effects."""

import threading

from idempotent import Outcome, Registry, Worker
from idempotent.checkers import MemoryChecker
from idempotent.observe import Observer
from idempotent.redrive import redrive
from idempotent.testing.adapter_contract import until

TIMEOUT_S = 60.0


class Service(Observer):
    """One consumer, its effects and the outcomes of its deliveries.

    Args:
        make_adapter: makes an adapter for the broker.
        subject: what to consume.
        group: of the consumer.
        options: of the consumer, such as `key=`.

    Attributes:
        effects: the messages that were handled.
        outcomes: of all settled deliveries.
        is_broken: whether the handler refuses all messages.
    """

    def __init__(self, make_adapter, subject, *, group="billing", **options):
        self.effects, self.outcomes, self.is_broken = [], [], False
        self._make_adapter = make_adapter
        self._registry = Registry([self])
        made = self._registry.consumer(
            subject, group=group, checker=MemoryChecker(), max_attempts=1, **options
        )
        self.consumer = made(self._handle)

    def settled(self, message, result):
        self.outcomes.append(result.outcome)

    def work(self, count):
        """Work until so many deliveries are settled: their outcomes."""
        first = len(self.outcomes)
        worker = Worker(self._registry, self._make_adapter(), gc_interval_s=None)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            until(lambda: len(self.outcomes) >= first + count, f"{count} settled deliveries")
        finally:
            worker.stop()
            thread.join(TIMEOUT_S)
        assert not thread.is_alive()
        return self.outcomes[first:]

    def bury(self, count=1):
        """Make dead letters of the next deliveries."""
        self.is_broken = True
        assert self.work(count) == [Outcome.DEAD] * count
        self.is_broken = False

    def redrive(self, count=1):
        """Return dead letters to the subject, and work until they are handled."""
        done = redrive(self.consumer, self._make_adapter(), limit=count, idle_s=TIMEOUT_S)
        assert (done.returned, done.reopened) == (count, count)
        assert self.work(count) == [Outcome.PROCESSED] * count

    def _handle(self, message):
        if self.is_broken:
            raise ValueError("no such customer: Zoë")
        self.effects.append(message)
