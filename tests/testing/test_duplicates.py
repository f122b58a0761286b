"""The generator of duplicates makes what a broker makes, and the same for the same seed."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idempotent import Message
from idempotent.errors import ConfigurationError
from idempotent.testing import with_duplicates


def stream(count):
    return (Message("orders", id=str(number), position=number) for number in range(count))


def delivered(count, **options):
    return [(message.position, message.redelivered) for message in with_duplicates(stream(count), **options)]


settings = {
    "seed": st.integers(),
    "rate": st.floats(0, 0.9),
    "window": st.integers(0, 30),
    "redelivered": st.floats(0, 1),
}


@given(**settings)
def test_every_message_is_delivered_at_least_once(**options):
    assert {position for position, _ in delivered(50, **options)} == set(range(50))


@given(**settings)
def test_the_same_seed_makes_the_same_deliveries(**options):
    assert delivered(50, **options) == delivered(50, **options)


def test_another_seed_makes_other_deliveries():
    assert delivered(200, seed=1) != delivered(200, seed=2)


@given(**settings)
def test_the_first_delivery_of_a_message_is_not_marked(**options):
    seen = set()
    for position, redelivered in delivered(50, **options):
        assert position in seen or not redelivered
        seen.add(position)


@given(**settings)
def test_a_message_overtakes_none_that_is_a_window_ahead(**options):
    """What was sent a window later comes later, copies aside."""
    first = list(dict.fromkeys(position for position, _ in delivered(80, **options)))
    latest = -1
    for position in first:
        assert latest < position + max(options["window"], 1)
        latest = max(latest, position)


def test_without_a_window_the_order_stays_and_copies_follow_at_once():
    positions = [position for position, _ in delivered(500, seed=3, rate=0.3, window=0)]
    assert positions == sorted(positions)
    assert len(positions) > 500


def test_with_a_window_the_order_changes():
    first = list(dict.fromkeys(position for position, _ in delivered(500, seed=3, rate=0, window=10)))
    assert first != sorted(first)


def test_a_rate_of_zero_makes_no_copies():
    assert len(delivered(500, seed=3, rate=0)) == 500


def test_the_rate_is_how_often_a_delivery_is_followed_by_another():
    # Each delivery is followed by one more with likelihood 1/5, so there are 1 + 1/5 + 1/25 + ... = 5/4 of them.
    assert 12_000 < len(delivered(10_000, seed=5, rate=0.2)) < 13_000


def test_messages_come_more_than_twice():
    assert max(Counter(position for position, _ in delivered(1000, seed=5, rate=0.5)).values()) > 3


@pytest.mark.parametrize(("share", "marked"), [(0.0, {False}), (1.0, {True})])
def test_copies_are_marked_as_redelivered_by_their_share(share, marked):
    seen, copies = set(), set()
    for position, redelivered in delivered(500, seed=5, rate=0.3, redelivered=share):
        if position in seen:
            copies.add(redelivered)
        seen.add(position)
    assert copies == marked


def test_a_redelivered_message_stays_marked_in_its_copies():
    messages = [Message("orders", id="1", redelivered=True)]
    copies = list(with_duplicates(messages, seed=1, rate=0.9, redelivered=0.0))
    assert len(copies) > 1
    assert all(message.redelivered for message in copies)


def test_a_copy_is_the_same_message():
    message = Message("orders", b"body", id="1", headers={"a": 1}, position=7)
    for copy in with_duplicates([message], seed=1, rate=0.9):
        assert (copy.subject, copy.body, copy.id, copy.headers) == ("orders", b"body", "1", {"a": 1})


def test_it_takes_no_more_than_a_window_ahead_of_an_endless_stream():
    taken = 0

    def endless():
        nonlocal taken
        for taken in itertools.count(1):
            yield Message("orders", id=str(taken))

    seen = set()
    for message in itertools.islice(with_duplicates(endless(), seed=1, rate=0.5, window=20), 5_000):
        seen.add(message.id)
        assert taken - len(seen) <= 21


@pytest.mark.parametrize(
    "wrong", [{"rate": -0.1}, {"rate": 1.0}, {"rate": float("nan")}, {"window": -1}, {"redelivered": 1.1}]
)
def test_a_number_out_of_range_is_refused_at_once(wrong):
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        with_duplicates([], seed=1, **wrong)
