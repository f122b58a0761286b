"""Who pays for a death: a message that kills its process, and none that ran beside it."""

import json
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from idempotent import Message, Outcome, Registry
from idempotent.testing import abandon_claim
from tests.guarantees.deaths.scenario import Plan
from tests.support.logs import logged
from tests.support.stores import Store

ROOT = Path(__file__).parents[3]
LEASE_S = 2.0


def plan_of(store: Store, kind: str, seed: int) -> Plan:
    """Two killers among forty messages, and two workers."""
    url = store.consumer_url or store.url
    if store.kind == "redis":
        return Plan(url, {"prefix": f"{store.table}:", "lease_s": LEASE_S}, None, seed)
    if kind == "leased":
        return Plan(url, {"table": store.table, "lease_s": LEASE_S}, None, seed)
    return Plan(f"transactional+{url}", {"table": store.table}, store.effects.name, seed)


def demand(plan: Plan) -> None:
    """Each message has its outcome: after a bounded number of deaths the killers are DEAD, and no other message is."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.guarantees.deaths.scenario", json.dumps(asdict(plan))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=350,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert not report["left"], (report, done.stderr[-3000:])
    wrong = {
        name: outcome
        for name, outcome in report["outcomes"].items()
        if (outcome == "dead") is not name.startswith("killer")
    }
    assert not wrong, report
    demand_names(plan, done.stderr)
    # Beside others, as a start that is noted, and then `max_attempts` times alone. What a worker that stops has left
    # running may still kill it, and is not charged.
    assert report["deaths"] <= plan.killers * (plan.max_attempts + 2) + plan.kills + plan.stops, report


def demand_names(plan: Plan, log: str) -> None:
    """Before each run of a killer that may be its last, the log names it and what it has left."""
    event = "process_died" if plan.effects else "lease_taken_over"
    line = re.compile(
        rf"{event} .* message_id='(killer.*?)' .* attempt=(\d+) max_attempts={plan.max_attempts}$",
        re.MULTILINE,
    )
    attempts: defaultdict[str, set[int]] = defaultdict(set)
    for name, attempt in line.findall(log):
        attempts[name].add(int(attempt))
    assert len(attempts) == plan.killers, log[-3000:]
    # The start of a transactional message is counted before it runs, a lapse when it is found: the last one is DEAD.
    expected = set(range(plan.max_attempts)) if plan.effects else set(range(1, plan.max_attempts))
    assert all(named == expected for named in attempts.values()), attempts


def test_a_killer_dies_and_innocents_live(sql_store):
    demand(replace(plan_of(sql_store, "transactional", 1), messages=12, killers=1, max_attempts=2))


@pytest.mark.parametrize("together", [False, True])
def test_the_log_names_a_message_whose_lease_lapsed_with_its_attempts(shared_store, together, caplog):
    consumer = Registry().consumer("orders", checker=shared_store.leased(), max_attempts=3)(lambda _: None)
    died, other = Message("orders", id="died"), Message("orders", id="other")
    for _ in range(2):
        abandon_claim(consumer, died)
        shared_store.age(3600)
    results = consumer.process_many([other, died]) if together else [consumer.process(died)]
    assert {result.outcome for result in results} == {Outcome.PROCESSED}
    (line,) = logged(caplog, "lease_taken_over")
    assert (line.levelname, line.message_id, line.attempt, line.max_attempts) == ("WARNING", "died", 2, 3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("batch_size", [1, 10])
@pytest.mark.parametrize("kind", ["leased", "transactional"])
def test_killers_die_and_innocents_live(shared_store, kind, batch_size, seed):
    if shared_store.kind == "redis" and kind == "transactional":
        pytest.skip("has no transactions")
    plan = plan_of(shared_store, kind, seed)
    demand(replace(plan, batch_size=batch_size, concurrency=1 + 3 * (seed % 3), workers=1 + seed % 3))


@pytest.mark.slow
@pytest.mark.timeout(800)
@pytest.mark.parametrize("kind", ["leased", "transactional"])
def test_neither_kills_nor_stops_make_a_message_dead(shared_store, kind):
    """Each kill hits another one, and an orderly stop counts nothing: handlers take longer than the drain."""
    if shared_store.kind == "redis" and kind == "transactional":
        pytest.skip("has no transactions")
    plan = replace(plan_of(shared_store, kind, 1), slow_s=0.5, every_s=0.7, killers=1)
    demand(replace(plan, kills=4, stops=4, max_attempts=6))
    # Stopped again and again, and never killed. A worker waits a second more for what it has cancelled.
    stops = replace(plan, seed=2, stops=8, killers=0, max_attempts=1, slow_s=4.0, every_s=1.5)
    demand(replace(stops, concurrency=1, messages=8, prefetch=2))
