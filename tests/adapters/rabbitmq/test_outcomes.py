"""What becomes of a delivery, and what is said to the broker about it."""

import pytest

from idempotent import Message, Outcome, Result
from idempotent.adapters.rabbitmq import AckMode
from idempotent.testing.adapter_contract import until
from tests.adapters.rabbitmq.member import ACK, DEAD, counting_acks, failed
from tests.adapters.rabbitmq.rabbit import hang_up, keep_working, numbered, receive

# What each outcome does


@pytest.mark.parametrize(
    ("result", "ready", "retried", "dead"),
    [
        (Result(Outcome.PROCESSED), 0, 0, 0),
        (Result(Outcome.DUPLICATE), 0, 0, 0),
        (Result(Outcome.IGNORED, error=ValueError()), 0, 0, 0),
        (Result(Outcome.FAILED, error=ValueError(), retry_after_s=55.0), 0, 1, 0),
        (Result(Outcome.DEAD, error=ValueError()), 0, 0, 1),
        (Result(Outcome.REJECTED, error=ValueError()), 0, 0, 1),
        (None, 1, 0, 0),
    ],
    ids=lambda value: value.outcome.value if isinstance(value, Result) else str(value),
)
@pytest.mark.parametrize("ack", [AckMode.MANUAL, AckMode.BATCHED])
def test_an_outcome_leads_to_one_place(rabbit, queue, opened, result, ready, retried, dead, ack):
    adapter = opened(queue, ack=ack)
    rabbit.send(Message(queue, id="1"))
    (delivery,) = receive(adapter)
    if result is not None:
        adapter.settle(delivery, result)
    adapter.close()
    until(lambda: rabbit.depth(queue) == ready, "the queue")
    assert rabbit.depth(f"{queue}.retry.60000") == retried
    assert rabbit.depth(f"{queue}.dead") == dead
    rabbit.delete(f"{queue}.retry.60000")


def test_closing_gives_back_at_once_what_nobody_has_seen(rabbit, queue, opened):
    adapter = opened(queue)
    rabbit.send(*numbered(queue, 20))
    receive(adapter, 1)
    adapter.close()
    until(lambda: rabbit.depth(queue) == 20, "all of them")


# Batched acknowledgements


def test_one_word_acknowledges_many(rabbit, queue, opened):
    adapter = opened(queue, ack="batched", ack_batch=10, ack_interval_s=5.0)
    sent = counting_acks(adapter)
    rabbit.send(*numbered(queue, 100))
    for delivery in receive(adapter, 100):
        adapter.settle(delivery, ACK)
    assert len(sent) == 10
    assert all(multiple for _, multiple in sent)
    adapter.close()
    assert rabbit.depth(queue) == 0


@pytest.mark.slow
def test_an_unfinished_delivery_is_never_covered_by_that_word(rabbit, queue, opened):
    adapter = opened(queue, ack="batched", ack_batch=2)
    rabbit.send(*numbered(queue, 9))
    deliveries = receive(adapter, 9)
    for delivery in deliveries[::-1]:
        if delivery is not deliveries[4]:
            adapter.settle(delivery, ACK)
            keep_working(adapter, 0.15)
    keep_working(adapter, 1.3)
    hang_up(adapter)
    (again,) = receive(adapter)
    assert again.message.id == "m-4"
    keep_working(adapter, 0.5)


def test_a_batch_that_does_not_fill_is_sent_by_the_clock(rabbit, queue, opened):
    adapter = opened(queue, ack="batched", ack_batch=50, ack_interval_s=0.1)
    rabbit.send(*numbered(queue, 3))
    first, _, third = receive(adapter, 3)
    adapter.settle(first, ACK)
    keep_working(adapter, 0.4)
    # The one that waits for a slow one goes by itself after a second.
    adapter.settle(third, ACK)
    keep_working(adapter, 1.5)
    hang_up(adapter)
    assert [delivery.message.id for delivery in receive(adapter)] == ["m-1"]
    keep_working(adapter, 0.5)


def test_a_prefetch_smaller_than_a_batch_does_not_stall(rabbit, queue, opened):
    adapter = opened(queue, ack="batched", prefetch=4, ack_batch=1000, ack_interval_s=60.0)
    rabbit.send(*numbered(queue, 40))
    slow = receive(adapter)[0]
    for _ in range(13):
        for delivery in receive(adapter, 3):
            adapter.settle(delivery, ACK)
    adapter.settle(slow, ACK)
    adapter.close()
    assert rabbit.depth(queue) == 0


def test_one_that_is_given_back_is_not_acknowledged(rabbit, queue, opened):
    adapter = opened(queue, ack="batched", ack_batch=3)
    rabbit.send(*numbered(queue, 3))
    first, second, third = receive(adapter, 3)
    adapter.requeue(second)
    adapter.settle(third, ACK)
    adapter.settle(first, ACK)
    (again,) = receive(adapter)
    assert again.message.id == "m-1"
    adapter.close()
    until(lambda: rabbit.depth(queue) == 1, "one")


# At most once


def test_auto_never_delivers_again_what_it_has_handed_out(rabbit, queue, opened):
    adapter = opened(queue, ack="auto", prefetch=5)
    rabbit.send(*numbered(queue, 10))
    taken = receive(adapter, 7)
    hang_up(adapter)
    rest = receive(adapter, 3)
    assert {d.message.id for d in rest}.isdisjoint({d.message.id for d in taken})
    for delivery in taken + rest:
        adapter.settle(delivery, ACK)
    adapter.close()
    assert rabbit.depth(queue) == 0


def test_auto_still_keeps_what_failed_what_is_dead_and_what_is_given_back(rabbit, queue, opened):
    adapter = opened(queue, ack="auto")
    rabbit.send(*numbered(queue, 3))
    one, two, three = receive(adapter, 3)
    hang_up(adapter)
    # The originals are gone, so that nobody delivers them again.
    adapter.settle(one, failed())
    adapter.settle(two, DEAD)
    adapter.requeue(three)
    assert {delivery.message.id for delivery in receive(adapter, 2)} == {"m-0", "m-2"}
    assert [letter.id for letter in rabbit.look(f"{queue}.dead")] == ["m-1"]
