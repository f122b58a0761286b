"""Torture of one pair, beside other tests. `make brief-torture` takes all pairs, and `make torture` an hour."""

from __future__ import annotations

import json
import random

import pytest
from rich.console import Console

from idempotent import Registry
from idempotent.adapters import adapter_from_url
from idempotent.claims import Verdict
from idempotent.cli.torture import over_servers
from idempotent.testing.torture import Servers, Settings, TortureRun
from idempotent.testing.torture.job import GROUP
from idempotent.testing.torture.messages import message_of
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


@pytest.mark.slow
def test_what_waits_for_a_lease_at_the_end_is_waited_for(rabbitmq_url, redis_url, tmp_path):
    """One that is done comes again, its key is lost, and whoever claims it anew dies: nobody has it for a lease."""
    settings = Settings(seed=3, seconds=1.0, processes=1, lease_s=5.0)
    run = TortureRun(settings, Servers(rabbitmq_url, redis_url), "torture_waits", tmp_path)
    copy = message_of("torture_waits", settings.seed, 0)
    checker = run.store.checker(settings.lease_s)
    dead = Registry().consumer(copy.subject, group=GROUP, checker=checker)(lambda _: None)
    sent = []

    def send_it_again():
        if run.producer.finished and run.finished == run.producer.begun and not sent:
            run.store.lose_keys(1.0, random.Random())
            sent.append(checker.claim(dead.request(copy)).verdict)
            checker.close()  # which ends the renewal, and no lease
            adapter = adapter_from_url(rabbitmq_url)
            adapter.publish(copy)
            adapter.close()

    run.run(send_it_again)
    assert sent == [Verdict.ACQUIRED]
    report = run.report()
    assert report.left == (), report.traces
