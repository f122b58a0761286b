"""What a message is called, also in a topic that was made again."""

from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.member import ACK, receive, send


def test_a_message_without_an_id_is_named_by_where_it_lies(broker, topic, opened):
    send(broker, topic, 1)
    (delivery,) = receive(opened(topic))
    topic_id, number, offset, epoch = delivery.message.id.split("/")
    assert (number, offset, epoch) == ("0", "0", "0")
    assert topic_id != topic
    position = delivery.message.position
    assert (position.partition, position.offset, position.expected) == (0, 0, 0)


def test_a_topic_that_is_made_again_brings_no_duplicates(broker, topic, opened):
    ids, adapter = [], opened(topic)
    # While it is consumed, then while it is not.
    for count in (3, 2, 4):
        send(broker, topic, count)
        for _ in range(count):
            (delivery,) = receive(adapter)
            ids.append(delivery.message.id)
            adapter.settle(delivery, ACK)
        if count == 2:
            adapter.close()
        broker.drop(topic)
        until(lambda: _makes(broker, topic), "a topic")
        if count == 2:
            adapter = opened(topic)
    assert len(set(ids)) == 9


def _makes(broker, topic):
    try:
        broker.make(topic)
    except Exception:
        return False
    return True
