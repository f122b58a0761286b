"""The contract on RabbitMQ, in each way of consuming that acknowledges after the verdict."""

from typing import ClassVar

import pytest

from idempotent import Message
from idempotent.testing import AdapterContract
from tests.adapters.rabbitmq.rabbit import Rabbit, hang_up


class _RabbitMqContract(AdapterContract):
    options: ClassVar = {}

    @pytest.fixture(autouse=True)
    def _broker(self, rabbitmq_url):
        self.rabbit = Rabbit(rabbitmq_url)
        self.names = []
        yield
        for adapter in self._opened:
            adapter.close()
        self._opened.clear()
        self.rabbit.clean_up()

    def make_adapter(self, **options):
        return self.rabbit.adapter(**{**self.options, **options})

    def prepare(self, subject):
        arguments = {"x-queue-type": self.options.get("queue_type", "classic")}
        self.rabbit.declare(subject, **arguments)

    def send(self, message):
        self.rabbit.send(message)

    def dead_letters(self, subject):
        return self.rabbit.look(f"{subject}.dead")

    def reason(self, letter):
        return letter.headers["x-idempotent-reason"]

    def refused(self, subject):
        del subject
        return Message("q" * 300, id="too long a name")

    def cut(self, adapter):
        hang_up(adapter)


class TestManual(_RabbitMqContract):
    options: ClassVar = {"ack": "manual"}


class TestBatched(_RabbitMqContract):
    options: ClassVar = {"ack": "batched"}


class TestPulled(_RabbitMqContract):
    options: ClassVar = {"pull": True}


class TestQuorum(_RabbitMqContract):
    options: ClassVar = {"queue_type": "quorum", "ack": "batched"}
