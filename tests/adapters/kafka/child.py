"""A process that passes messages from topic to topic, to be killed at any time."""

import os
import signal
from typing import Any

from idempotent import Message, Registry, Worker
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.adapters.kafka.transactions.transactions import TransactionalProducer
from idempotent.checkers import AttemptChecker

GROUP = "billing"
# How soon the group misses a member that was killed.
IMPATIENT = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 300}


def pass_on(
    bootstrap: str, topic: str, target: str, stop_before: str = "", transaction_timeout_ms: int = 2000
) -> None:
    """Pass all on to another topic, in transactions; stop dead before a step of the first, if asked."""
    registry = Registry()

    @registry.consumer(topic, group=GROUP, checker=AttemptChecker())
    def handle(message: Message) -> Message:
        return Message(target, message.body)

    if stop_before:
        _stop_before(stop_before)
    adapter = KafkaAdapter(
        bootstrap,
        semantics="exactly_once",
        commit_interval_s=0.05,
        consumer_config=IMPATIENT,
        producer_config={"transaction.timeout.ms": transaction_timeout_ms},
        max_in_flight_per_partition=20,
    )
    Worker(registry, adapter, batch_size=20, gc_interval_s=None).run()


def _stop_before(step: str) -> None:
    stops = iter([signal.SIGSTOP])

    class Stopping:
        def __init__(self, client: Any) -> None:
            self._client = client

        def __getattr__(self, name: str) -> Any:
            if name == step and (stop := next(stops, None)) is not None:
                os.kill(os.getpid(), stop)
            return getattr(self._client, name)

    is_ready = TransactionalProducer.is_ready

    def stopping(self: Any, wait_s: float) -> bool:
        ready = is_ready(self, wait_s)
        if ready and not isinstance(self.client, Stopping):
            self.client = Stopping(self.client)
        return ready

    TransactionalProducer.is_ready = stopping  # type: ignore[method-assign]
