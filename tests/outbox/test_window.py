"""How much is read at once, and what is not sent at all."""

import pytest

from idempotent import Message
from idempotent.errors import PublishError
from idempotent.outbox.relays.batches import Window
from idempotent.outbox.store import Waiting
from tests.adapters.rabbitmq.rabbit import Rabbit


def messages(count, size):
    return [Waiting(n, n % 64, b"", "1", "", "q", None, None, b"x" * size, 0) for n in range(count)]


def test_large_messages_are_read_a_few_at_a_time():
    window = Window(500)
    window.note(messages(8, 4_000_000))
    assert sum(window.limits(range(64)).values()) <= 4


def test_small_messages_soon_fill_the_batch():
    window = Window(500)
    for _ in range(3):
        window.note(messages(64, 100))
    assert 400 <= sum(window.limits(range(64)).values()) <= 64 * 8


@pytest.mark.parametrize("name", ["a\nb", "a\rb"])
def test_rabbitmq_refuses_a_name_with_a_line_break_and_answers_about_the_others(rabbitmq_url, name):
    rabbit = Rabbit(rabbitmq_url)
    queue = rabbit.declare(rabbit.name())
    adapter = rabbit.adapter()
    adapter.open([])
    try:
        with pytest.raises(PublishError) as error:
            adapter.publish_many([Message(name, b"x", id="1"), Message(queue, b"y", id="2")])
        assert error.value.refused.keys() == {0}
        assert rabbit.depth(queue) == 1
    finally:
        adapter.close()
        rabbit.clean_up()
