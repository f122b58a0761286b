"""The contract on a real ActiveMQ, once for each way of acknowledging."""

from typing import ClassVar

import pytest

from idempotent import Message
from idempotent.adapters.activemq import AckMode, StompAdapter
from idempotent.adapters.copies import REASON_HEADER
from idempotent.policy import Backoff
from idempotent.testing import AdapterContract
from tests.adapters.activemq.stomp_client import client, in_queue

QUICK = Backoff(initial_s=0.05, maximum_s=0.5)


class TestStompAdapter(AdapterContract):
    ack = AckMode.INDIVIDUAL
    options: ClassVar = {}

    @pytest.fixture(autouse=True)
    def _broker(self, stomp_url):
        self.url = stomp_url

    def make_adapter(self, **options):
        return StompAdapter(self.url, ack=self.ack, backoff=QUICK, **self.options, **options)

    def send(self, message):
        with client(self.url) as sender:
            headers = {"x-idempotent-key": message.id, **message.headers}
            sender.publish(f"/queue/{message.subject}", message.body, headers)

    def dead_letters(self, subject):
        return in_queue(self.url, f"/queue/{subject}.dead")

    def reason(self, letter):
        return letter.headers[REASON_HEADER]

    def refused(self, subject):
        return Message(subject, id=b"\xff")

    def cut(self, adapter):
        epoch = adapter._epoch
        if epoch is not None:
            epoch.connection._transport.disconnect_socket()


class TestStompAdapterOptimizeAcknowledge(TestStompAdapter):
    """In groups, as `dups_ok` does too."""

    ack = AckMode.AUTO
    options: ClassVar = {"optimize_acknowledge": True}


class TestStompAdapterClient(TestStompAdapter):
    ack = AckMode.CLIENT
    options: ClassVar = {"receipts": True}


class TestStompAdapterTransacted(TestStompAdapter):
    ack = AckMode.TRANSACTED
