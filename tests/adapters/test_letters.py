"""Dead letters of real brokers: looked at, chosen, dropped and returned, and all others stay."""

from __future__ import annotations

from contextlib import closing

import pytest

from idempotent import Message, Outcome, Registry
from idempotent.checkers import MemoryChecker
from idempotent.claims import KeyStatus
from idempotent.redrive import Dropped, LetterFilter, Redriven, drop, error_group, letters, redrive
from tests.adapters.conformance_child import GROUP
from tests.adapters.places import BROKERS, MemoryPlace, open_place
from tests.support.working import run_until

COUNT = 60


@pytest.fixture(params=[*(pytest.param(each, marks=pytest.mark.slow) for each in BROKERS), "memory"])
def place(request):
    if request.param == "memory":
        yield MemoryPlace()
    else:
        yield from open_place(request.param, request)


class Shop:
    """A consumer that refuses each message, in one of two ways, and its dead letters."""

    def __init__(self, place, checker):
        self.place, self.subject = place, place.subject()
        self.registry = Registry()
        self.refuses = True
        self.tried, self.done = [], []
        # Kafka's group takes its time.
        self.idle_s = 0.3 if isinstance(place, MemoryPlace) else 3.0

        @self.registry.consumer(self.subject, group=GROUP, checker=checker, max_attempts=1)
        def handle(message):
            self.tried.append(message.id)
            if not self.refuses:
                self.done.append(message.id)
            elif message.body == b"odd":
                raise LookupError(f"no customer {message.id!r}")
            else:
                raise ValueError(f"order {message.id} of 2026-11-29 has no amount")

        self.consumer = handle

    def work(self, outcomes):
        wanted = len(self.tried) + sum(outcomes.values())
        summary = run_until(self.registry, self.place.adapter(), lambda: len(self.tried) >= wanted)
        assert summary.outcomes == outcomes

    def letters(self, **choice):
        return letters(self.consumer, self.place.adapter(), only=LetterFilter(**choice), idle_s=self.idle_s)


@pytest.fixture
def shop(place):
    with closing(MemoryChecker()) as checker:
        shop = Shop(place, checker)
        bodies = [b"odd" if number % 3 == 0 else b"plain" for number in range(COUNT)]
        place.send(*(Message(shop.subject, body, id=str(number)) for number, body in enumerate(bodies)))
        shop.work({Outcome.DEAD: COUNT})
        yield shop


def test_letters_are_looked_at_and_stay(shop):
    found = shop.letters()
    assert {each.message.id for each in found} == set(map(str, range(COUNT)))
    assert {(each.message.subject, each.dead.status, each.attempts) for each in found} == {
        (shop.subject, KeyStatus.DEAD, 1)
    }
    assert {each.message.body for each in found} == {b"odd", b"plain"}
    groups = {each.error: each.reason for each in found}
    assert len(groups) == 2
    assert len({each.place for each in found}) == COUNT
    # Its number is the place of another letter in RabbitMQ's connection.
    one = next(each for each in found if each.message.id == "3")
    assert one.reason == f"LookupError: no customer '{one.message.id}'"
    assert one.error == error_group(shop.consumer.name, one.dead.last_error)
    for name in (str(one.key), one.key.hash.hex(), one.message.id, one.place):
        assert [each.message.id for each in shop.letters(names=frozenset({name}))] == [one.message.id]
    again = shop.letters(within_s=3600)
    assert {(each.place, each.attempts) for each in again} == {(each.place, 1) for each in found}
    assert len(shop.place.dead_letters(shop.subject)) == COUNT


def test_a_group_goes_back_another_is_dropped_and_the_rest_stays(shop):
    odd = error_group(shop.consumer.name, "LookupError: no customer '1'")
    meant = LetterFilter(error=odd)
    options = {"only": meant, "idle_s": shop.idle_s}
    rehearsed = redrive(shop.consumer, shop.place.adapter(), dry_run=True, **options)
    assert rehearsed == Redriven(returned=COUNT // 3, reopened=COUNT // 3)
    assert len(shop.place.dead_letters(shop.subject)) == COUNT
    returned = redrive(shop.consumer, shop.place.adapter(), rate=100, limit=COUNT // 3 - 1, **options)
    assert returned == Redriven(returned=COUNT // 3 - 1, reopened=COUNT // 3 - 1)
    # Kafka removes nothing: what was returned behind a letter that stays is seen again, and its key is not dead.
    (last,) = (each for each in shop.letters(error=odd) if each.dead)
    assert drop(
        shop.consumer,
        shop.place.adapter(),
        only=LetterFilter(names=last.names),
        note="a test",
        idle_s=shop.idle_s,
    ) == Dropped(1)
    assert shop.consumer.checker.admin().get(last.key).status is KeyStatus.DONE
    shop.refuses = False
    shop.work({Outcome.PROCESSED: COUNT // 3 - 1})
    assert sorted(shop.done) == sorted(set(shop.done))
    left = [each for each in shop.letters() if each.dead]
    assert {each.message.body for each in left} == {b"plain"}
    assert len(left) == COUNT - COUNT // 3
