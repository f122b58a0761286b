"""CloudEvents, binary and structured, over RabbitMQ and Kafka."""

from datetime import UTC, datetime

import pika
import pytest
from cloudevents.core.bindings import kafka, rabbitmq
from cloudevents.core.v1.event import CloudEvent

from idempotent import Outcome, keys
from tests.adapters.rabbitmq.rabbit import Rabbit

DATA = {"cents": 100, "name": "Zoë"}
ATTRIBUTES = {
    "id": "7",
    "source": "/shop/köln",
    "type": "order.paid",
    "specversion": "1.0",
    "datacontenttype": "application/json",
    "subject": "Zoë",
    "time": datetime(2026, 1, 2, tzinfo=UTC),
}


def event(**attributes):
    return CloudEvent({**ATTRIBUTES, **attributes}, DATA)


def send_to_queue(rabbit, queue, message):
    properties = pika.BasicProperties(
        headers=message.headers, content_type=message.content_type, delivery_mode=2
    )
    with rabbit.channel() as channel:
        Rabbit.publish(channel, queue, message.body, properties)


def send_to_topic(broker, topic, message):
    broker.produce(topic, message.value, message.key, list(message.headers.items()))


RABBITMQ_MODES = [rabbitmq.to_binary_event, rabbitmq.to_structured_event]
KAFKA_MODES = [kafka.to_binary_event, kafka.to_structured_event]


@pytest.mark.parametrize("mode", RABBITMQ_MODES)
def test_over_rabbitmq_an_event_has_no_id_of_amqp(rabbit, queue, serve_queue, mode):
    send_to_queue(rabbit, queue, mode(event()))
    assert serve_queue().work(1) == [Outcome.REJECTED]


@pytest.mark.parametrize("mode", RABBITMQ_MODES)
def test_over_rabbitmq_source_and_id_are_the_key_and_the_dead_letter_is_the_event(
    rabbit, queue, serve_queue, mode
):
    for source in ("/shop/köln", "/shop/köln", "/shop/bonn"):
        send_to_queue(rabbit, queue, mode(event(source=source)))
    service = serve_queue(key=keys.cloudevents)
    assert service.work(3) == [Outcome.PROCESSED, Outcome.DUPLICATE, Outcome.PROCESSED]
    send_to_queue(rabbit, queue, mode(event(id="8")))
    service.bury()
    (letter,) = rabbit.look(f"{queue}.dead")
    read = rabbitmq.from_rabbitmq_event(
        rabbitmq.RabbitMQMessage(dict(letter.headers), letter.raw.properties.content_type, letter.body)
    )
    assert (read.get_attributes(), read.get_data()) == (event(id="8").get_attributes(), DATA)
    service.redrive()


@pytest.mark.slow
@pytest.mark.parametrize("mode", KAFKA_MODES)
def test_over_kafka_two_sendings_are_two_messages(broker, topic, serve_topic, mode):
    for _ in range(2):
        send_to_topic(broker, topic, mode(event()))
    assert serve_topic().work(2) == [Outcome.PROCESSED] * 2


@pytest.mark.parametrize("mode", KAFKA_MODES)
def test_over_kafka_source_and_id_are_the_key_and_the_dead_letter_is_the_event(
    broker, topic, serve_topic, mode
):
    for source in ("/shop/köln", "/shop/köln", "/shop/bonn"):
        send_to_topic(broker, topic, mode(event(source=source, partitionkey="customer-1")))
    service = serve_topic(key=keys.cloudevents)
    assert service.work(3) == [Outcome.PROCESSED, Outcome.DUPLICATE, Outcome.PROCESSED]
    assert service.effects[0].raw.key() == b"customer-1"
    send_to_topic(broker, topic, mode(event(id="8", partitionkey="customer-1")))
    service.bury()
    (letter,) = broker.read_raw(f"{topic}.dlq")
    read = kafka.from_kafka_event(kafka.KafkaMessage(dict(letter.headers()), letter.key(), letter.value()))
    assert read.get_attributes() == event(id="8", partitionkey="customer-1").get_attributes()
    assert read.get_data() == DATA
    service.redrive()
