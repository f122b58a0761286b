"""Streamed is made while it is read, and once."""

from idempotent.processing.group import Streamed


def numbers(made, count=5):
    for number in range(count):
        made.append(number)
        yield number


def test_no_more_is_made_than_somebody_has_come_to():
    made = []
    streamed = Streamed(numbers(made))
    assert not made
    assert streamed
    reader = iter(streamed)
    assert [next(reader), next(reader)] == [0, 1]
    assert made == [0, 1]


def test_readers_that_take_turns_all_see_all_of_it():
    made = []
    streamed = Streamed(numbers(made))
    one, other = iter(streamed), iter(streamed)
    seen = [next(one), next(other), next(other), next(other), next(one), *one], [*other]
    assert seen == ([0, 0, 1, 2, 1, 2, 3, 4], [3, 4])
    assert made == list(range(5))


def test_its_length_and_its_elements_are_those_of_a_list():
    assert len(Streamed(numbers([]))) == 5
    assert Streamed(numbers([]))[-1] == 4
    assert Streamed(numbers([]))[1:3] == [1, 2]
    assert list(reversed(Streamed(numbers([])))) == [4, 3, 2, 1, 0]
    assert 3 in Streamed(numbers([]))
    assert not Streamed(numbers([], 0))
