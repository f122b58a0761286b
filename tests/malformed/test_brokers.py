"""A flood of messages that no handler understands: each becomes a dead letter, and no good one is lost."""

from __future__ import annotations

import json
import random

import pytest

from idempotent import Message, Registry
from idempotent.checkers import MemoryChecker
from tests.adapters.places import BROKERS, open_place
from tests.malformed.messages import malformed
from tests.support.working import run_until

# ActiveMQ shows no more than 400 messages of a queue to one who looks.
MALFORMED, GOOD = 350, 200


@pytest.fixture(params=BROKERS)
def place(request):
    yield from open_place(request.param, request)


@pytest.mark.slow
def test_each_is_a_dead_letter_and_the_good_ones_run(place):
    rng, subject = random.Random(11), place.subject()
    sent = [malformed(subject, number, rng) for number in range(MALFORMED)]
    sent += [Message(subject, json.dumps({"n": n}).encode(), id=f"good-{n}") for n in range(GOOD)]
    rng.shuffle(sent)
    place.send(*sent)

    registry, seen, dead = Registry(), [], []

    @registry.consumer(subject, group="billing", checker=MemoryChecker(), retry_for=(OSError,))
    def handle(message):
        try:
            seen.append(message.json()["n"] + 0)
        except Exception:
            dead.append(int(message.headers["which"]))
            raise

    def are_done():
        # A worker that stops waits only a moment for its letters; the originals of the others would come again.
        return len(seen) >= GOOD and len(dead) >= MALFORMED and len(place.dead_letters(subject)) >= MALFORMED

    run_until(registry, place.adapter(), are_done, batch_size=100)
    assert sorted(seen) == list(range(GOOD))
    assert sorted(dead) == list(range(MALFORMED))
    letters = place.dead_letters(subject)
    assert sorted(int(letter.headers["which"]) for letter in letters) == list(range(MALFORMED))
    assert all(letter.headers["x-idempotent-outcome"] for letter in letters)
    assert place.left(subject) == 0
