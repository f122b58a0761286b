"""Torture, briefly: one pair, or with IDEMPOTENT_TORTURE_EVERY_PAIR=1 every broker with every checker. `make torture`
takes an hour for all of them."""

from __future__ import annotations

import json
import os

import pytest
from rich.console import Console

from idempotent.cli.torture import over_servers
from idempotent.testing.torture import Settings
from tests.torture_pairs import CHECKERS, PAIRS, servers_of

BROKER_FIXTURES = {
    "rabbitmq": "private_rabbitmq",
    "activemq": "private_activemq",
    "kafka": "private_kafka",
}
STORE_FIXTURES = {
    "MariaDB": "private_mariadb",
    "PostgreSQL": "private_postgres",
    "Redis": "private_redis",
}
SECONDS = 10.0
# The same faults each time, so that a failure comes again; others by hand, and in the long run.
SEED = int(os.environ.get("IDEMPOTENT_TORTURE_SEED", "1"))


# One pair each time. All of them want a machine of their own: what explains a repeat is told by when things happened,
# and beside other tests a process may stand still for longer than a lease.
EVERY_PAIR = bool(os.environ.get("IDEMPOTENT_TORTURE_EVERY_PAIR"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("broker", "checker"),
    PAIRS if EVERY_PAIR else [("rabbitmq", "transactional-mariadb")],
)
def test_nothing_is_lost_and_nothing_unexplained(broker, checker, request):
    kind = CHECKERS[checker]
    running = (
        request.getfixturevalue(BROKER_FIXTURES[broker])(),
        request.getfixturevalue(STORE_FIXTURES[kind.store.name])(*kind.options),
    )
    report = over_servers(
        Console(quiet=True), Settings(seed=SEED, seconds=SECONDS), servers_of(*running, checker)
    )
    shown = json.dumps(report.as_json(), indent=1)
    assert report.kept_promise, shown
    assert report.messages > 50, shown
    # A machine that is too busy for all of it still does some.
    assert report.kills + report.pauses, shown
    assert report.restarts, shown
    assert report.kills + report.pauses + report.cuts + report.other_faults > 3, shown
