"""The in-process broker delivers at least once, and its faults are those of its seed."""

import time
from collections import Counter

import pytest

from idempotent import Message, Outcome, Registry, Result
from idempotent.adapters import Delivery, MemoryAdapter, MemoryBroker, adapter_from_url
from idempotent.checkers import MemoryChecker
from idempotent.errors import ConfigurationError

ACK = Result(Outcome.PROCESSED)
SUBJECT = "orders"


def listening(broker: MemoryBroker, *subjects: str, until_empty: bool = False) -> MemoryAdapter:
    registry = Registry()
    for subject in subjects or (SUBJECT,):
        registry.consumer(subject, checker=MemoryChecker())(lambda message: None)
    adapter = MemoryAdapter(broker, until_empty=until_empty)
    adapter.open(tuple(registry.consumers.values()))
    return adapter


def filled(count: int, **faults) -> MemoryBroker:
    broker = MemoryBroker(**faults)
    for number in range(count):
        broker.publish(Message(SUBJECT, id=str(number)))
    return broker


def drained(broker: MemoryBroker, *, chunk: int = 100) -> list[str]:
    """Ids in the order of delivery; every one is acknowledged."""
    adapter = listening(broker)
    ids = []
    while deliveries := adapter.receive(chunk, 0.0):
        for delivery in deliveries:
            ids.append(str(delivery.message.id))
            adapter.settle(delivery, ACK)
    return ids


def received(adapter: MemoryAdapter, limit: int = 10, timeout_s: float = 0.0) -> list[Delivery]:
    return adapter.receive(limit, timeout_s)


def test_without_faults_every_message_comes_once_and_in_order() -> None:
    assert drained(filled(100)) == [str(number) for number in range(100)]


def test_an_unsettled_delivery_comes_again_after_close_and_says_so() -> None:
    broker = filled(2)
    first = listening(broker)
    one, two = received(first)
    assert not one.message.redelivered
    first.settle(two, ACK)
    first.close()

    (again,) = received(listening(broker))
    assert again.message.id == one.message.id
    assert again.message.redelivered


def test_after_a_crash_the_adapter_connects_again_and_its_late_settlement_is_dropped() -> None:
    broker = filled(1)
    adapter = listening(broker)
    (lost,) = received(adapter)
    broker.crash()
    adapter.settle(lost, ACK)
    assert adapter.stale_settlements == 1

    (again,) = received(adapter)
    assert again.message.id == lost.message.id
    adapter.settle(lost, ACK)
    assert broker.backlog(SUBJECT) == 1, "the old token must not settle the new delivery"
    adapter.settle(again, ACK)
    assert broker.backlog(SUBJECT) == 0
    adapter.settle(again, ACK)
    assert adapter.stale_settlements == 3


def test_a_requeued_delivery_comes_again_in_its_old_place() -> None:
    adapter = listening(filled(3))
    (first,) = received(adapter, 1)
    adapter.requeue(first)
    assert [delivery.message.id for delivery in received(adapter)] == ["0", "1", "2"]


def test_a_delayed_message_comes_again_when_its_time_has_come() -> None:
    now = [100.0]
    adapter = listening(filled(1, clock=lambda: now[0]))
    (delivery,) = received(adapter)
    adapter.settle(delivery, Result(Outcome.FAILED, retry_after_s=5.0))
    assert not received(adapter)
    now[0] += 4.9
    assert not received(adapter)
    now[0] += 0.2
    (again,) = received(adapter)
    assert again.message.redelivered


def test_a_receive_that_waits_gets_a_delayed_message_in_time() -> None:
    adapter = listening(filled(1))
    (delivery,) = received(adapter)
    adapter.settle(delivery, Result(Outcome.FAILED, retry_after_s=0.05))
    assert received(adapter, timeout_s=30.0)


def test_a_dead_letter_keeps_its_message_and_the_reason() -> None:
    broker = filled(1)
    adapter = listening(broker)
    (delivery,) = received(adapter)
    adapter.settle(delivery, Result(Outcome.DEAD, error=ValueError("no such flight")))
    (dead,) = broker.dead_letters(SUBJECT)
    assert dead.message.id == "0"
    assert dead.reason == "ValueError: no such flight"
    assert broker.backlog(SUBJECT) == 0


def test_a_message_that_nobody_ever_settles_dies_of_the_delivery_limit_and_delays_do_not_count() -> None:
    broker = filled(1, max_deliveries=3)
    adapter = listening(broker)
    for _ in range(5):
        (delivery,) = received(adapter)
        adapter.settle(delivery, Result(Outcome.FAILED, retry_after_s=0.0))
    for _ in range(3):
        assert received(adapter)
        broker.crash()
    assert not received(adapter)
    assert [dead.reason for dead in broker.dead_letters(SUBJECT)] == ["delivered 3 times and never settled"]


FAULTS = {"duplicate_rate": 0.2, "reorder_window": 30, "redeliver_rate": 0.1}


def test_a_seed_makes_the_same_faults_however_deliveries_are_taken() -> None:
    runs = [drained(filled(1000, seed=7, **FAULTS), chunk=chunk) for chunk in (1, 64, 1, 5000)]
    assert runs[0] == runs[2]
    assert Counter(runs[0]) == Counter(runs[1]) == Counter(runs[3])
    assert runs[0] != drained(filled(1000, seed=8, **FAULTS), chunk=1)


def test_duplicates_and_lost_acknowledgements_come_at_about_their_rates_and_nothing_is_lost() -> None:
    for faults in ({"duplicate_rate": 0.2}, {"redeliver_rate": 0.2}):
        ids = drained(filled(5000, seed=1, **faults))
        assert set(ids) == {str(number) for number in range(5000)}
        assert 5900 < len(ids) < 6400, faults


def test_reordering_displaces_most_messages_but_none_by_more_than_the_window() -> None:
    order = [int(number) for number in drained(filled(1000, seed=3, reorder_window=20), chunk=5000)]
    moved = [abs(place - number) for place, number in enumerate(order)]
    assert max(moved) <= 20
    assert sum(1 for distance in moved if distance) > 500


def test_queues_take_turns_and_other_subjects_stay_where_they_are() -> None:
    broker = MemoryBroker()
    for subject in ("a", "a", "b", "other"):
        broker.publish(Message(subject, id="1"))
    adapter = listening(broker, "a", "b")
    taken = [received(adapter, 1)[0].message.subject for _ in range(3)]
    assert taken == ["a", "b", "a"]
    assert broker.backlog("other") == 1


def test_until_empty_finishes_only_when_nothing_is_delayed_or_unsettled() -> None:
    broker = filled(1)
    adapter = listening(broker, until_empty=True)
    assert not adapter.finished
    (delivery,) = received(adapter)
    assert not adapter.finished
    adapter.settle(delivery, Result(Outcome.FAILED, retry_after_s=0.0))
    assert not adapter.finished
    adapter.settle(received(adapter)[0], ACK)
    assert adapter.finished
    assert not listening(broker).finished


def test_a_woken_adapter_does_not_wait_even_if_it_was_woken_before() -> None:
    adapter = listening(MemoryBroker())
    adapter.wake()
    started = time.monotonic()
    assert received(adapter, timeout_s=30.0) == []
    assert time.monotonic() - started < 10.0


def test_a_memory_url_shares_one_broker_by_name() -> None:
    one = adapter_from_url("memory://shared-by-name?seed=3&duplicate_rate=0.5&until_empty=yes")
    two = adapter_from_url("memory://shared-by-name")
    assert isinstance(one, MemoryAdapter)
    assert isinstance(two, MemoryAdapter)
    assert one.broker is two.broker
    with pytest.raises(ConfigurationError, match="exists already"):
        adapter_from_url("memory://shared-by-name?seed=4")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("carrier-pigeon://user:secret@coop", "known: amqp://, .*file://, .*memory://"),
        ("memory://wrong?sede=1", "unknown option 'sede'; known: duplicate_rate, max_deliveries"),
        ("memory://wrong?seed=one", "'seed' must be of type int, not 'one'"),
        ("memory://wrong?until_empty=perhaps", "'until_empty' must be of type bool"),
        ("memory://wrong?redeliver_rate=1", "redeliver_rate must be from 0 to below 1"),
        ("file://", "needs a path"),
    ],
)
def test_a_wrong_url_says_what_is_known(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        adapter_from_url(url)
    assert "secret" not in str(caught.value)
