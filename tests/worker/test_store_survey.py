"""The stores of workers are measured, by one process at a time."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

import idempotent
from idempotent.adapters.spark.ledger import StoreConfig, open_ledger
from idempotent.admin import StoreStats, WaitingKeys
from idempotent.checkers import MemoryChecker
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.errors import StoreUnavailableError
from idempotent.migrations import upgrade
from idempotent.observe.counting import StoreMeasures
from idempotent.worker.store_watch import MeasuredStore, StoreSurvey
from tests.support.hooks import answering, unreachable
from tests.support.logs import logged
from tests.support.stores import SHARED, SQL, open_store
from tests.worker.running import SUBJECT, until

CONSUMERS = """
from idempotent import consumer
from idempotent.checkers import RedisChecker, SqlChecker
from idempotent.registry import default_registry

default_registry.checker("db", {checker})

@consumer("orders", checker="db")
def handle(message):
    pass
"""


@pytest.fixture
def store(request):
    yield from open_store(request.param, request, reuse=True)


@pytest.mark.parametrize(
    ("store", "transactional"),
    [*((kind, False) for kind in SHARED), *((kind, True) for kind in SQL)],
    indirect=["store"],
)
def test_one_of_two_processes_measures_and_the_other_takes_over_when_it_stops(store, transactional):
    measures = StoreMeasures(), StoreMeasures()
    first, second = (
        MeasuredStore(store.transactional() if transactional else store.leased(), each) for each in measures
    )
    for each in (first, second, first):
        each.consumers.add("orders:default")
        each.look()
    ((name, shown),) = measures[0].stats().items()
    assert shown == StoreStats({"orders:default": WaitingKeys(0, 0, 0.0)}, 0)  # not the key of the lead
    assert not measures[1].stats()
    assert "password" not in name
    assert store.table in name
    first.give_up()
    assert not measures[0].stats()
    second.look()
    assert measures[1].stats() == {name: shown}
    second.give_up()


@pytest.mark.parametrize("store", SHARED, indirect=True)
def test_the_runs_of_spark_beside_the_keys_are_measured(store):
    def measured():
        measures = StoreMeasures()
        one = MeasuredStore(store.leased(), measures)
        one.look()
        ((_, stats),) = measures.stats().items()
        one.give_up()
        return stats

    assert measured().runs == {}, "there is no table for them"
    if store.kind == "redis":
        return
    upgrade(store.url, table=store.table)
    with open_ledger(StoreConfig(store.url, table=store.table)) as ledger:
        assert measured().runs == {}
        refs = [ledger.begin("orders", f"r{number}", lease_s=60.0).ref for number in range(3)]
        for ref in refs[1:]:
            ledger.prepare(ref)
        ledger.commit(refs[2])
        stats = measured()
        assert stats.runs == {"open": 1, "prepared": 1, "committed": 1, "aborted": 0}
        assert stats.prepared_waits_s == 0.0, "its driver publishes"
        ledger.end_lease(refs[1])
        assert 0 < measured().prepared_waits_s < 60


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_one_whose_lead_was_taken_over_shows_nothing_more(store):
    measures = StoreMeasures(), StoreMeasures()
    paused, other = (MeasuredStore(store.leased(lease_s=0.5), each) for each in measures)
    paused.look()
    paused._checker.protocol._keeper.close()  # as if the process were paused: it renews nothing
    until(lambda: other.look() or measures[1].stats())
    paused.look()
    assert not measures[0].stats()
    other.give_up()


def test_what_goes_wrong_is_told_once_a_minute_and_measured_again_later(caplog):
    class Odd(MemoryChecker):
        def admin(self):
            raise StoreUnavailableError("no route to host")

    measures = StoreMeasures()
    odd = MeasuredStore(Odd(), measures)
    odd.look()
    odd.look()
    (told,) = logged(caplog, "store_not_measured")
    assert (told.store, told.error) == (odd._checker.store_name, "StoreUnavailableError: no route to host")
    assert not measures.stats()


def test_a_checker_that_shows_no_keys_is_asked_once(caplog):
    class Hidden(MemoryChecker):
        def admin(self):
            return AbstractIdempotentChecker.admin(self)

    hidden = MeasuredStore(Hidden(), StoreMeasures())
    hidden.look()
    assert len(logged(caplog, "store_not_measured")) == 1
    assert hidden._next == math.inf


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_without_leases_every_process_measures_and_a_store_that_is_away_is_not_measured(store):
    measures = StoreMeasures(), StoreMeasures()
    for each in measures:
        MeasuredStore(store.leased(lease_s=None), each).look()
    assert measures[0].stats() == measures[1].stats() != {}
    checker, none = store.leased(), StoreMeasures()
    with answering(checker, _claim=unreachable):
        MeasuredStore(checker, none).look()
    assert not none.stats()


def test_a_worker_measures_only_if_somebody_wants_it(registry):
    checkers = MemoryChecker(), MemoryChecker()
    for number, checker in enumerate(checkers):
        registry.consumer(f"{SUBJECT}{number}", checker=checker)(lambda _: None)
    consumers = tuple(registry.consumers.values())
    measures = StoreMeasures()
    with StoreSurvey(consumers, measures):
        time.sleep(0.2)
    assert not measures.stats()
    measures.wanted = True
    with StoreSurvey(consumers, measures):
        until(lambda: len(measures.stats()) == 2)
        assert [set(stats.consumers) for stats in measures.stats().values()] == [
            {"orders0:default"},
            {"orders1:default"},
        ]
    assert not measures.stats()


def process(folder):
    words = ("run", "surveyed", "--broker", "memory://x", "--metrics-port", "0")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(Path(idempotent.__file__).parents[1])]),
    }
    made = subprocess.Popen(
        [sys.executable, "-m", "idempotent.cli", *words],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    line = made.stderr.readline()
    return made, line.split()[1].removesuffix(".")


def dead_keys(url):
    """The lines of the scrape that say how many keys are dead."""
    text = urlopen(url).read().decode()
    return [line for line in text.splitlines() if line.startswith("idempotent_store_dead_keys{")]


@pytest.mark.slow
@pytest.mark.parametrize("store", ["postgres", "redis"], indirect=True)
def test_when_the_process_that_measures_is_killed_another_one_measures(store, tmp_path):
    made = (
        f"RedisChecker({store.url!r}, prefix={f'{store.table}:'!r}, lease_s=2.0)"
        if store.kind == "redis"
        else f"SqlChecker({store.url!r}, table={store.table!r}, lease_s=2.0)"
    )
    (tmp_path / "surveyed.py").write_text(CONSUMERS.format(checker=made))
    processes = [process(tmp_path)]
    try:
        until(lambda: dead_keys(processes[0][1]))
        processes.append(process(tmp_path))
        time.sleep(3.0)
        assert not dead_keys(processes[1][1])
        processes[0][0].send_signal(signal.SIGKILL)
        until(lambda: dead_keys(processes[1][1]))
    finally:
        for each, _ in processes:
            each.kill()
            each.wait()
            each.stderr.close()
