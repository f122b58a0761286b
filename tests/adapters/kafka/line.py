"""Two topics, and workers that pass messages from one on to the other in transactions."""

import secrets
from collections import Counter
from contextlib import contextmanager

from idempotent import Message, Outcome, Registry, Result
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.checkers import AttemptChecker
from tests.adapters.kafka.child import GROUP
from tests.adapters.kafka.member import working

__all__ = ["GROUP", "Line"]


class Line:
    """A topic, the topic that its messages are passed on to, and workers between the two."""

    def __init__(self, broker, partitions=1, **target_config):
        self.broker, self.partitions, self.bootstrap = broker, partitions, broker.bootstrap
        self.source, self.target = (f"{name}-{secrets.token_hex(6)}" for name in ("orders", "invoices"))
        broker.make(self.source, partitions)
        broker.make(self.target, partitions, **target_config)
        broker.make(f"{self.source}.dlq")

    def send(self, count, first=0):
        for number in range(first, first + count):
            self.broker.send(
                self.source,
                str(number).encode(),
                partition=number % self.partitions,
                key=b"k%d" % (number % 7),
            )
        self.broker.flush()

    def adapter(self, **options):
        settings = {"semantics": "exactly_once", "commit_interval_s": 0.1, **options}
        return KafkaAdapter(self.bootstrap, **settings)

    def consumer(self, handler, **options):
        return Registry().consumer(self.source, group=GROUP, checker=AttemptChecker(), **options)(handler)

    def pass_on(self, message):
        return Message(self.target, message.body)

    @contextmanager
    def opened(self, **options):
        adapter = self.adapter(**options)
        try:
            adapter.open([self.consumer(self.pass_on)])
            yield adapter
        finally:
            adapter.close()

    def working(self, handler=None, adapter=None, **options):
        return working(
            adapter or self.adapter(),
            self.source,
            handler or self.pass_on,
            group=GROUP,
            checker=AttemptChecker(),
            **options,
        )

    def settle(self, adapter, *deliveries):
        for delivery in deliveries:
            adapter.settle(delivery, Result(Outcome.PROCESSED, value=self.pass_on(delivery.message)))

    def arrived(self, isolation="read_committed"):
        return [int(raw.value()) for raw in self.broker.read_raw(self.target, isolation)]

    def committed(self):
        return sum(self.broker.committed(GROUP, self.source, n) or 0 for n in range(self.partitions))

    def letters(self):
        return self.broker.read(f"{self.source}.dlq")

    def is_through(self, count):
        # The offsets of a transaction may be committed a moment before its outputs.
        return lambda: (
            self.committed() == count and not self.broker.has_open_transaction(self.target, self.partitions)
        )

    def check_once_and_in_order(self, count):
        found = self.broker.read_raw(self.target)
        assert Counter(int(raw.value()) for raw in found) == Counter(range(count))
        lanes = {}
        for raw in found:
            lanes.setdefault((raw.partition(), raw.key()), []).append(int(raw.value()))
        # A key lies in several partitions of the source, each of which has an order of its own.
        for numbers in lanes.values():
            for partition in range(self.partitions):
                of_one = [number for number in numbers if number % self.partitions == partition]
                assert of_one == sorted(of_one)
