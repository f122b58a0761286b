"""Who pays for a death: a message that kills its process, and none that ran beside it."""

import json
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.guarantees.deaths.scenario import Plan
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
    # Without leases the first delivery is not noted. What a worker that stops has left running may still kill it.
    assert report["deaths"] <= plan.killers * (plan.max_deaths + 1) + plan.kills + plan.stops, report


def demand_names(plan: Plan, log: str) -> None:
    """After the deaths of a killer the log names it, and how many there may be."""
    line = re.compile(
        rf"process_died .* message_id='(killer.*?)' .* deaths=(\d+) max_deaths={plan.max_deaths}$",
        re.MULTILINE,
    )
    deaths: defaultdict[str, set[int]] = defaultdict(set)
    for name, number in line.findall(log):
        deaths[name].add(int(number))
    assert len(deaths) == plan.killers, log[-3000:]
    # Another one may kill the process between a start and its line, or before the message is made dead.
    assert all(max(named) >= plan.max_deaths and len(named) > 2 for named in deaths.values()), deaths


def test_a_killer_dies_and_innocents_live(sql_store):
    demand(replace(plan_of(sql_store, "transactional", 1), messages=12, killers=1, max_deaths=3))


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
def test_kills_from_outside_and_stops_make_no_message_dead(shared_store, kind):
    """They hit each message fewer than five times in a row."""
    if shared_store.kind == "redis" and kind == "transactional":
        pytest.skip("has no transactions")
    plan = replace(plan_of(shared_store, kind, 1), slow_s=0.5, every_s=0.7, killers=1)
    demand(replace(plan, kills=4, stops=4))
    stops = replace(plan, seed=2, stops=4, killers=0, slow_s=4.0, every_s=1.5)
    demand(replace(stops, concurrency=1, messages=8, prefetch=2))
