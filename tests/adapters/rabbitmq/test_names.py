"""Names as long as they may be, and longer: what cannot have its queues is refused at open."""

from __future__ import annotations

import pytest

from idempotent import Message
from idempotent.adapters.rabbitmq import RabbitMqAdapter
from idempotent.errors import ConfigurationError, PublishError
from idempotent.testing.adapter_contract import until
from tests.adapters.rabbitmq.member import DEAD, failed
from tests.adapters.rabbitmq.rabbit import consumer_of, receive

A_MONTH_S = 30 * 86400.0


def long_name(rabbit, size, letter="x"):
    """A name of so many bytes, of letters that may have several."""
    begin = rabbit.name()
    more, rest = divmod(size - len(begin), len(letter.encode()))
    name = begin + letter * more + "x" * rest
    assert len(name.encode()) == size
    rabbit.declare(name)
    return name


@pytest.mark.parametrize("letter", ["x", "é", "🙂"])
@pytest.mark.parametrize("options", [{}, {"pull": True}, {"ack": "auto"}, {"queue_type": "quorum"}])
def test_a_queue_whose_own_queues_would_have_too_long_names_is_refused(rabbit, letter, options):
    with pytest.raises(ConfigurationError, match="it has 159 bytes, and 158 is the most") as raised:
        rabbit.adapter(**options).open([consumer_of(long_name(rabbit, 159, letter))])
    assert "<queue>.dead.retry.2592000000" in str(raised.value)


def test_a_shared_dead_letter_queue_with_too_long_a_name_is_refused(rabbit, queue):
    adapter = rabbit.adapter(dead_letter_queue="é" * 120)
    with pytest.raises(ConfigurationError, match=r"dead_letter_queue .* 240 bytes, and 163 is the most"):
        adapter.open([consumer_of(queue)])


@pytest.mark.parametrize("name", ["orders\npaid", "orders\rpaid", "orders\ud83d"])
def test_a_name_that_the_broker_would_change_is_refused(rabbit, name):
    with pytest.raises(ConfigurationError, match=r"line break|surrogate"):
        rabbit.adapter().open([consumer_of(name)])


def test_a_virtual_host_with_too_long_a_name_is_refused():
    with pytest.raises(ConfigurationError, match="256 bytes, and 255 is the most"):
        RabbitMqAdapter(f"amqp://localhost/{'%C3%A9' * 128}")


def test_the_longest_name_has_all_its_queues_and_those_of_its_dead_letters(rabbit, opened):
    queue = long_name(rabbit, 158, "é")
    adapter = opened(queue)
    rabbit.send(Message(queue, id="fails"), Message(queue, id="dead"))
    one, other = sorted(receive(adapter, 2), key=lambda delivery: delivery.message.id)
    adapter.settle(one, DEAD)
    adapter.settle(other, failed(A_MONTH_S))
    until(
        lambda: (
            (adapter.receive(0, 0.01), rabbit.depth(f"{queue}.dead"), rabbit.depth(_month(queue)))[1:]
            == (1, 1)
        ),
        "the copies",
    )
    dead = f"{queue}.dead"
    letters = opened(dead)
    (letter,) = receive(letters)
    letters.settle(letter, failed(A_MONTH_S))
    until(lambda: (letters.receive(0, 0.01), rabbit.depth(_month(dead)))[1], "the dead letter's copy")
    rabbit.delete(_month(dead))


def test_a_message_is_published_to_a_name_of_255_bytes_and_no_longer_one(rabbit, opened):
    longest = long_name(rabbit, 255, "é")
    adapter = opened()
    adapter.publish(Message(longest, id="1"))
    assert rabbit.depth(longest) == 1
    with pytest.raises(PublishError, match="it has 256 bytes, and 255 is the most"):
        adapter.publish(Message(f"{longest}x", id="2"))
    rabbit.delete(longest)
    rabbit._made.discard(longest)


def _month(queue):
    return f"{queue}.retry.2592000000"
