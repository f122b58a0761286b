"""Torture of one pair, beside other tests. `make brief-torture` takes all pairs, and `make torture` an hour."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from idempotent.cli.torture import over_servers
from idempotent.testing.torture import Settings
from tests.torture_pairs import servers_of


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_lost_and_nothing_unexplained(private_rabbitmq, private_mariadb):
    servers = servers_of(private_rabbitmq(), private_mariadb(), "transactional-mariadb")
    # The same faults each time, so that a failure comes again.
    report = over_servers(Console(quiet=True), Settings(seed=1, seconds=10.0), servers)
    shown = json.dumps(report.as_json(), indent=1)
    assert report.kept_promise, shown
    assert report.messages > 50, shown
    # A machine that is too busy for all of it still does some.
    assert report.kills + report.pauses, shown
    assert report.restarts, shown
    assert report.kills + report.pauses + report.cuts + report.other_faults > 3, shown
