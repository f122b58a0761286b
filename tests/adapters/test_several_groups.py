"""Several groups that each receive all messages: what one of them failed at reaches no other again."""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from contextlib import ExitStack, closing, contextmanager

import pika
import pytest

from idempotent import Message, Registry, Worker
from idempotent.adapters.activemq import StompAdapter
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.adapters.rabbitmq import RabbitMqAdapter
from idempotent.checkers import AttemptChecker, MemoryChecker, OffsetChecker
from idempotent.migrations import upgrade
from idempotent.policy import Backoff
from idempotent.redrive import Redriven, redrive
from idempotent.testing.adapter_contract import until
from tests.adapters.activemq.stomp_client import in_queue
from tests.adapters.kafka.broker import Broker
from tests.adapters.rabbitmq.rabbit import Rabbit

GROUPS = ("billing", "mail")
SOON = Backoff(initial_s=0.05, maximum_s=0.1)


class KafkaTopic:
    """A topic; the options of the second group's adapter, and its checker, are parameters."""

    returned = Redriven(returned=1, reopened=1, left=1, others=1)

    def __init__(self, bootstrap, options=None, checker=None):
        self.bootstrap, self.options, self.broker = bootstrap, options or {}, Broker(bootstrap)
        self.checker = checker
        topic = f"orders-{secrets.token_hex(6)}"
        self.broker.make(topic)
        self.broker.make(f"{topic}.dlq")
        self.subjects = dict.fromkeys(GROUPS, topic)

    def adapter(self, group):
        return KafkaAdapter(self.bootstrap, **(self.options if group == "mail" else {}))

    def redriving(self):
        return KafkaAdapter(self.bootstrap, ordering="none")

    def send(self, *ids):
        for name in ids:
            self.broker.send_message(Message(self.subjects["mail"], name.encode(), id=name))

    def letters(self):
        return len(self.broker.read_raw(f"{self.subjects['mail']}.dlq"))


class StompTopic:
    """A topic of ActiveMQ with two durable subscriptions."""

    returned = Redriven(returned=1, reopened=1, left=1, others=1)
    checker = None

    def __init__(self, url):
        self.url, self.name = url, f"orders-{secrets.token_hex(6)}"
        self.subjects = dict.fromkeys(GROUPS, f"/topic/{self.name}")

    def adapter(self, group):
        own = {"client_id": f"{self.name}-{group}", "durable_subscription": group}
        return StompAdapter(self.url, backoff=SOON, **own)

    def redriving(self):
        return StompAdapter(self.url)

    def send(self, *ids):
        with closing(StompAdapter(self.url)) as sender:
            sender.open([])
            for name in ids:
                sender.publish(Message(self.subjects["mail"], name.encode(), id=name))

    def letters(self):
        return len(in_queue(self.url, f"/queue/{self.name}.dead"))


class RabbitExchange:
    """An exchange with a queue for each group, which has a queue of dead letters."""

    returned = Redriven(returned=1, reopened=1)
    checker = None

    def __init__(self, url):
        self.rabbit, self.exchange = Rabbit(url), f"orders-{secrets.token_hex(6)}"
        self.subjects = {group: self.rabbit.declare(self.rabbit.name(group)) for group in GROUPS}
        with self.rabbit.channel() as channel:
            channel.exchange_declare(self.exchange, "fanout", auto_delete=True)
            for queue in self.subjects.values():
                channel.queue_bind(queue, self.exchange)

    def adapter(self, group):
        return RabbitMqAdapter(self.rabbit.url)

    def redriving(self):
        return RabbitMqAdapter(self.rabbit.url)

    def send(self, *ids):
        with self.rabbit.channel() as channel:
            for name in ids:
                properties = {"x-idempotent-key": name}
                channel.basic_publish(
                    self.exchange, "", name.encode(), pika.BasicProperties(headers=properties)
                )

    def letters(self):
        return sum(self.rabbit.depth(f"{queue}.dead") for queue in self.subjects.values())


@pytest.fixture(params=["offsets", "exactly_once", "forgetful", "stomp", "rabbitmq"])
def place(request, tmp_path):
    if request.param == "rabbitmq":
        place = RabbitExchange(request.getfixturevalue("rabbitmq_url"))
        yield place
        place.rabbit.clean_up()
    elif request.param == "stomp":
        yield StompTopic(request.getfixturevalue("stomp_url"))
    else:
        url = f"sqlite:///{tmp_path / 'offsets.db'}"
        upgrade(url)
        bootstrap = request.getfixturevalue("kafka_bootstrap")
        if request.param == "offsets":
            with closing(OffsetChecker(url)) as checker:
                yield KafkaTopic(bootstrap, checker=checker)
        elif request.param == "exactly_once":
            yield KafkaTopic(bootstrap, {"semantics": "exactly_once"}, AttemptChecker())
        else:
            yield KafkaTopic(bootstrap)


@contextmanager
def working(worker):
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(60)
        assert not thread.is_alive()


def test_what_one_group_failed_at_reaches_no_other_again(place):
    runs, bad, consumers = Counter(), {("billing", "1"), ("mail", "2")}, {}
    with ExitStack() as stack:
        for group, subject in place.subjects.items():

            def handle(message: Message, group=group) -> None:
                name = message.body.decode()
                runs[group, name] += 1
                if (group, name) in bad:
                    raise ValueError("no such customer")

            registry = Registry()
            # The other group recognises no message by its key: what comes again runs again.
            forgets = group == "mail" and place.checker is None
            key = {"key": lambda _: secrets.token_hex(8)} if forgets else {}
            checker = (place.checker if group == "mail" else None) or MemoryChecker()
            attempts = 1 if group == "mail" else 2
            consumers[group] = registry.consumer(
                subject, group=group, checker=checker, max_attempts=attempts, backoff=SOON, **key
            )(handle)
            adapter = place.adapter(group)
            stack.enter_context(working(Worker(registry, adapter, gc_interval_s=None)))
            until(lambda adapter=adapter: adapter.connected, "a connection")
        place.send("0", "1", "2")
        until(lambda: place.letters() == 2, "a letter of each group")
        bad.clear()
        redriven = Redriven()
        while redriven == Redriven():  # to join takes longer on a busy machine
            redriven = redrive(consumers["billing"], place.redriving(), idle_s=1.5)
        assert redriven == place.returned
        until(lambda: runs["billing", "1"] == 3, "the message that went back")
        place.send("3")  # behind it
        until(lambda: all(runs[group, "3"] for group in GROUPS), "the last message")
    once = {(group, name): 1 for group in GROUPS for name in "0123"}
    assert runs == {**once, ("billing", "1"): 3}
