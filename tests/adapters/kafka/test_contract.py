"""The contract on a Kafka broker."""

import pytest

from idempotent import Message
from idempotent.adapters.copies import REASON_HEADER
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.testing import AdapterContract
from tests.adapters.kafka.broker import Broker


class TestKafkaAdapter(AdapterContract):
    # A partition has an offset and nothing else: what comes again after a crash looks as it did before.
    tells_redelivery = False
    keeps_key = True
    keeps_tombstones = True

    @pytest.fixture(autouse=True)
    def _broker(self, kafka_bootstrap):
        self.broker = Broker(kafka_bootstrap)

    def prepare(self, subject):
        self.broker.make(subject)
        self.broker.make(f"{subject}.dlq")

    def make_adapter(self, **options):
        # The contract holds several messages of one partition at once.
        return KafkaAdapter(self.broker.bootstrap, ordering="none", **options)

    def send(self, message):
        self.broker.send_message(message)

    def dead_letters(self, subject):
        return self.broker.read(f"{subject}.dlq")

    def reason(self, letter):
        return letter.headers[REASON_HEADER]

    def refused(self, subject):
        self.broker.make(f"{subject}.small", **{"max.message.bytes": "1000"})
        return Message(f"{subject}.small", bytes(2000), id="large")

    def cut(self, adapter):
        # A lost connection takes nothing from a member of a group. Losing its partitions does.
        lose_partitions(adapter)


def lose_partitions(adapter):
    """Leave the group and join again, in the adapter's own thread: another one would wait behind its polls."""
    group = adapter._group
    fetch = group.fetch

    def fetch_anew(wait_s, woken):
        group.fetch = fetch
        group.consumer.unsubscribe()
        group._subscribe()
        fetch(wait_s, woken)

    group.fetch = fetch_anew
