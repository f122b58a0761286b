"""Who calls a consumer himself: attempts without a bound, and a death that is logged and says how to undo it."""

import asyncio
import os
import re
import subprocess
import sys

import pytest

from idempotent import Message, Outcome, Registry, current_claim
from idempotent.adapters import MemoryBroker
from idempotent.checkers import MemoryChecker
from idempotent.errors import ConfigurationError, DeadKeyError
from idempotent.policy import Backoff
from tests.support.logs import logged
from tests.support.stores import ALL, SHARED, SQL, open_store
from tests.worker.running import emptying

PLACES = [(kind, "leased") for kind in ALL] + [(kind, "transactional") for kind in SQL]
OUTAGES = 12


class Ship:
    """A consumer that fails until it is `mended`."""

    def __init__(self, checker, *, is_async=False, registry=None, **options):
        self.mended = False
        self.claims = []

        def ship(message):
            self.claims.append(current_claim())
            if not self.mended:
                raise ConnectionError(f"away {message.id}")

        async def ship_async(message):
            ship(message)

        decorate = (registry or Registry()).consumer("orders", checker=checker, **options)
        self.consumer = decorate(ship_async if is_async else ship)

    def call(self, message_id, *, many=False, **fields):
        message = Message("orders", id=message_id, **fields)
        result = self.consumer.process_many([message]) if many else self.consumer.process(message)
        if asyncio.iscoroutine(result):
            result = asyncio.run(result)
        return result[0] if many else result


@pytest.mark.parametrize(("kind", "mode"), PLACES)
@pytest.mark.parametrize("many", [False, True])
def test_without_a_bound_no_series_of_outages_kills_a_key(request, kind, mode, many):
    for store in open_store(kind, request, reuse=True):
        ship = Ship(getattr(store, mode)(), max_attempts=None)
        ends = [ship.call("a", many=many) for _ in range(OUTAGES)]
        assert {end.outcome for end in ends} == {Outcome.FAILED}
        assert [end.attempt for end in ends] == [*range(1, OUTAGES + 1)], "they are counted all the same"
        ship.mended = True
        assert ship.call("a", many=many).outcome is Outcome.PROCESSED


@pytest.mark.parametrize("kind", ALL)
def test_without_a_bound_no_attempt_is_the_last(request, kind):
    for store in open_store(kind, request, reuse=True):
        ship = Ship(store.leased(), max_attempts=None, backoff=Backoff(0.001, 0.001))
        for _ in range(3):
            result = ship.call("a", position=1)
            while result.outcome is Outcome.IN_PROGRESS:
                result = ship.call("a", position=1)
        assert [(claim.attempt, claim.is_last_attempt) for claim in ship.claims[1:]] == [
            (2, False),
            (3, False),
        ]


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 0, "many", True])
def test_what_is_no_number_of_attempts_is_refused_with_what_means_no_bound(value):
    with pytest.raises(ConfigurationError, match="None for no bound") as raised:
        Ship(MemoryChecker(), max_attempts=value)
    assert "write" not in str(raised.value), "it cannot be converted"


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("many", [False, True])
def test_the_death_of_a_callers_message_is_an_error_in_the_log(caplog, is_async, many):
    ship = Ship(MemoryChecker(), is_async=is_async, max_attempts=2)
    assert ship.call("a", many=many).outcome is Outcome.FAILED
    assert not logged(caplog, "message_dead")
    assert ship.call("a", many=many).outcome is Outcome.DEAD
    (line,) = logged(caplog, "message_dead")
    assert line.levelname == "ERROR"
    about = (line.consumer, line.key, line.message_id, line.attempt, line.error)
    assert about == ("orders:default", "orders:default:a", "a", 2, "ConnectionError: away a")
    for _ in range(20):
        assert ship.call("a", many=many).outcome is Outcome.DEAD
    assert len(logged(caplog, "message_dead")) == 2, "of all calls for keys that are dead, a line a minute"


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_the_death_of_a_delivery_is_logged_by_its_worker_alone(caplog, is_async, batch_size):
    broker, registry = MemoryBroker(), Registry()
    Ship(MemoryChecker(), is_async=is_async, registry=registry, retry_for=())
    for message_id in ("a", "b"):
        broker.publish(Message("orders", id=message_id))
    emptying(registry, broker, batch_size=batch_size).run()
    assert sorted(line.message_id for line in logged(caplog, "message_dead")) == ["a", "b"]


@pytest.mark.parametrize("kind", SHARED)
def test_what_the_error_of_a_dead_key_says_to_type_frees_the_key(request, kind):
    for store in open_store(kind, request, reuse=True):
        ship = Ship(store.leased(), max_attempts=1)
        ship.call("it's $HOME")
        error = ship.call("it's $HOME").error
        assert isinstance(error, DeadKeyError)
        command = re.search(r"idempotent keys resolve .*", str(error))[0]
        here = f'idempotent() {{ "{sys.executable}" -m idempotent "$@"; }}; {command}'
        subprocess.run(["sh", "-c", here], check=True, env={**os.environ, "VARIABLE": store.url})
        ship.mended = True
        assert ship.call("it's $HOME").outcome is Outcome.PROCESSED
