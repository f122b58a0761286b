"""Each client by itself, as its own documentation shows it: acknowledged by hand, and nothing remembered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from idempotent.adapters.kafka.client import Raw
from tests.bench.brokers.course import Course

PREFETCH = 200
# confluent-kafka's documentation: `consume(num_messages, timeout)`, then a synchronous `commit`.
TOGETHER = 500
PATIENCE_S = 60.0


def rabbitmq(url: str, queue: str, count: int) -> Course:
    """pika: a callback that acknowledges each message."""
    import pika

    course, seen = Course(), 0
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=PREFETCH)

    def on_message(channel, method, properties, body) -> None:
        nonlocal seen
        course.begin()
        seen += 1
        channel.basic_ack(method.delivery_tag)
        if seen == count:
            course.end()
            channel.stop_consuming()

    channel.basic_consume(queue, on_message)
    channel.start_consuming()
    connection.close()
    return course


def activemq(url: str, queue: str, count: int) -> Course:
    """stomp.py: a listener that acknowledges each message."""
    import stomp

    host, _, port = url.removeprefix("stomp://").partition(":")
    connection = stomp.Connection12([(host, int(port))])
    course, done = Course(), threading.Event()

    class Listener(stomp.ConnectionListener):
        seen = 0

        def on_message(self, frame) -> None:
            course.begin()
            self.seen += 1
            connection.ack(frame.headers["ack"])
            if self.seen == count:
                course.end()
                done.set()

    connection.set_listener("bench", Listener())
    connection.connect(wait=True)
    headers = {"activemq.prefetchSize": PREFETCH}
    connection.subscribe(f"/queue/{queue}", id="1", ack="client-individual", headers=headers)
    assert done.wait(PATIENCE_S), "not all messages came"
    connection.disconnect()
    return course


def kafka(
    bootstrap: str,
    topic: str,
    group: str,
    count: int,
    process: Callable[[Sequence[Raw]], object] = lambda _: None,
) -> Course:
    """confluent-kafka: many at once, and a commit that waits for its answer after them."""
    from confluent_kafka import Consumer

    course, seen = Course(), 0
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    while seen < count:
        messages = consumer.consume(min(TOGETHER, count - seen), timeout=1.0)
        if not messages:
            continue
        course.begin()
        for message in messages:
            assert message.error() is None, message.error()
            seen += len(message.value()) > 0
        process(messages)
        consumer.commit(asynchronous=False)
    course.end()
    consumer.close()
    return course
