"""`make flood` with few messages, and that it sees what is wrong."""

import secrets

import pytest

from examples.demo.stage.places import place_at
from tests.malformed.flood import Flood


@pytest.fixture
def place(rabbitmq_url):
    return place_at(rabbitmq_url, f"flood_{secrets.token_hex(4)}", 50)


@pytest.mark.slow
def test_all_is_as_it_should_be(place):
    found = Flood(place, 100).run(lambda _: None)
    assert not any(found.values()), found


@pytest.mark.slow
def test_a_good_one_that_does_not_run_and_a_bad_one_that_is_no_letter_are_seen(place):
    class Deaf(Flood):
        def _handle(self, message):
            pass

    found = Deaf(place, 100).run(lambda _: None)
    assert len(found["good ones lost"]) == 10
    assert len(found["without a dead letter"]) == 100
