"""What the RabbitMQ tests do behind the adapter's back, by a connection of their own."""

import secrets
import socket
import time
from contextlib import contextmanager, suppress

import pika
import pika.exceptions

from idempotent import Message, Registry
from idempotent.adapters.rabbitmq import RabbitMqAdapter
from idempotent.adapters.rabbitmq.messages import Received, message_from
from idempotent.adapters.rabbitmq.topology import delayed_queues
from idempotent.checkers import MemoryChecker
from idempotent.message import received_message
from idempotent.policy import Backoff

SOON = Backoff(initial_s=0.05, maximum_s=0.5)


def consumer_of(queue, handler=lambda _: None, **options):
    options.setdefault("checker", MemoryChecker())
    return Registry().consumer(queue, group="test", **options)(handler)


class Rabbit:
    """A broker, from the outside."""

    def __init__(self, url):
        self.url = url
        self._made = set()

    @contextmanager
    def channel(self):
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        try:
            yield connection.channel()
        finally:
            if connection.is_open:
                connection.close()

    def name(self, prefix="test"):
        name = f"{prefix}-{secrets.token_hex(6)}"
        self._made.add(name)
        return name

    def declare(self, queue, **arguments):
        self._made.add(queue)
        with self.channel() as channel:
            channel.queue_declare(queue, durable=True, arguments=arguments)
        return queue

    def declare_all(self, queue, **arguments):
        """What an adapter with `declare=False` needs."""
        for name in (f"{queue}.dead", f"{queue}.retry.due", queue):
            self.declare(name, **arguments)
        return queue

    def delete(self, queue):
        with self.channel() as channel:
            channel.queue_delete(queue)

    def exists(self, queue):
        with self.channel() as channel:
            try:
                channel.queue_declare(queue, passive=True)
            except pika.exceptions.ChannelClosedByBroker:
                return False
            return True

    @property
    def version(self):
        with self.channel() as channel:
            major, minor, *_ = channel.connection._impl.server_properties["version"].split(".")
        return int(major), int(minor)

    def depth(self, queue):
        """Messages that are ready; 0 when there is no such queue."""
        with self.channel() as channel:
            try:
                return channel.queue_declare(queue, passive=True).method.message_count
            except pika.exceptions.ChannelClosedByBroker:
                return 0

    def consumers(self, queue):
        with self.channel() as channel:
            return channel.queue_declare(queue, passive=True).method.consumer_count

    def send(self, *messages):
        with self.channel() as channel:
            channel.confirm_delivery()
            for message in messages:
                properties = pika.BasicProperties(
                    message_id=message.id, headers=dict(message.headers), delivery_mode=2
                )
                self.publish(channel, message.subject, message.body, properties)

    @staticmethod
    def publish(channel, queue, body=b"", properties=None):
        channel.basic_publish("", queue, body, properties, mandatory=True)

    def look(self, queue):
        """The messages of a queue, which stay there, with all headers that the broker has."""
        found = []
        with self.channel() as channel, suppress(pika.exceptions.ChannelClosedByBroker):
            while (got := channel.basic_get(queue))[0] is not None:
                method, properties, body = got
                raw = Received(method, properties)
                message = message_from(queue, raw, body)
                found.append(
                    received_message(
                        queue,
                        body,
                        message.id,
                        properties.headers or {},
                        message.redelivered,
                        message.position,
                        raw,
                    )
                )
        return found

    def adapter(self, url=None, **options):
        options.setdefault("backoff", SOON)
        return RabbitMqAdapter(url or self.url, **options)

    def clean_up(self):
        with self.channel() as channel:
            for queue in self._made:
                channel.queue_delete(queue)
                channel.queue_delete(f"{queue}.dead")
                for delayed in delayed_queues(queue):
                    channel.queue_delete(delayed)


def hang_up(adapter):
    """Breaks the connection of an adapter, as a network does."""
    session = adapter._session
    if session is None:
        return
    with suppress(OSError, AttributeError):
        session._connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)


def receive(adapter, count=1, within_s=30.0):
    deliveries = []
    deadline = time.monotonic() + within_s
    while len(deliveries) < count:
        assert time.monotonic() < deadline, f"{len(deliveries)} of {count} deliveries"
        deliveries += adapter.receive(count - len(deliveries), 0.1)
    return deliveries


def keep_working(adapter, for_s):
    """What the worker does while its handlers run; nothing must arrive."""
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        assert adapter.receive(10, 0.05) == []


def numbered(queue, count):
    return [Message(queue, b"x", id=f"m-{number}") for number in range(count)]
