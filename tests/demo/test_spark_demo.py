"""`python -m examples.demo spark`, in its small form, and the proof that it can fail."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise

import psutil
import pytest

from examples.demo.spark.deliveries import files_of_runs, flights_by_month
from examples.demo.spark.run import SparkRun
from examples.demo.spark.schedule import STEPS, SparkSettings, kills_of
from examples.demo.spark.stores import SparkStores

FEW = SparkSettings(flights=600, months=2, kills=2, duplicates=0.2)


def command(*words):
    return [sys.executable, "-m", "examples.demo", "spark", "--flights", "600", "--months", "2", *words]


def demo(folder, *words, **environ):
    return subprocess.run(
        command(*words),
        env={**os.environ, "TMPDIR": str(folder), **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )


@pytest.fixture
def temporary(tmp_path):
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_through_kills_each_flight_is_published_once_in_files_and_in_a_table(temporary, mysql_url):
    done = demo(temporary, "--json", "--store", mysql_url, "--kills", "2", "--duplicates", "0.2")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ok"]
    for output in ("parquet", "table"):
        assert report[output]["booked"] == report["truth"]
        assert report[output]["equal"]
    assert report["kills"] == 2
    assert report["truth"]["flights"] == 600
    # The temptation was there.
    assert report["delivered"]["rows"] > 700
    assert report["delivered"]["repeated_by_naive"] > 0
    assert not [path for path in temporary.iterdir() if "demo" in path.name]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_in_a_pipe_it_prints_plain_words(temporary):
    done = demo(temporary, "--kills", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(char.isprintable() or char == "\n" for char in done.stdout)
    assert "2 runs committed" in done.stdout
    assert "Each of the 600 flights is published exactly once" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_no_file_and_no_process(number, temporary):
    running = subprocess.Popen(
        command(),
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    processes, until = [], time.monotonic() + 90
    # The driver and its JVM.
    while not any(is_java(each) for each in processes) and time.monotonic() < until:
        time.sleep(0.1)
        processes = psutil.Process(running.pid).children(recursive=True)
    running.send_signal(number)
    printed, _ = running.communicate(timeout=350)
    assert len(processes) > 1
    assert not psutil.wait_procs(processes, timeout=20)[1]
    assert running.returncode == 130, printed
    assert "Interrupted" in printed
    assert "Traceback" not in printed
    assert not [path for path in temporary.iterdir() if "demo" in path.name]


def is_java(process):
    try:
        return process.name() == "java"
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
def test_without_java_it_says_what_is_missing(temporary):
    done = demo(temporary, PATH=str(temporary), JAVA_HOME="")
    assert done.returncode == 3
    assert "Java" in done.stderr


@pytest.mark.slow
def test_output_that_is_missing_repeated_or_changed_fails_it(tmp_path):
    stores = SparkStores.at(None, tmp_path)
    stores.prepare()
    run = SparkRun(FEW, stores, tmp_path)
    assert run.compare().table.lost == 600
    (flight, *_), *_ = flights_by_month(FEW)
    row = {**flight._asdict(), "carrier_name": "Nobody", "punctuality": "on time"}
    stores.insert("2013-01", [row, row])
    report = run.compare()
    assert (report.table.lost, report.table.strange, report.kept_promise) == (600, 2, False)


@pytest.mark.slow
def test_every_kind_of_duplicate_is_delivered_and_the_same_ones_for_the_same_seed():
    months = flights_by_month(FEW)
    assert sum(map(len, months)) == 600
    runs = files_of_runs(months, FEW)
    assert runs == files_of_runs(months, FEW)
    (first, second) = ([Counter(row.flight for row in rows) for rows in files] for files in runs)
    for month, files in zip(months, (first, second), strict=True):
        *once, again = files
        assert set(month) <= set().union(*once)
        assert again in once
        assert any(left & right for left, right in pairwise(once))
    assert set().union(*first) & set().union(*second)
    envelopes = {(row.flight, row.message_id) for files in runs for rows in files for row in rows}
    assert len(envelopes) > 600


def test_kills_are_spread_over_runs_and_steps():
    kills = kills_of(SparkSettings(months=6, kills=6))
    assert [kill.date for kill in kills] == SparkSettings(months=6).logical_dates
    assert {kill.step for kill in kills} == set(STEPS)
    assert kills_of(SparkSettings(kills=0)) == []
    many = kills_of(SparkSettings(months=1, kills=20))
    order = [STEPS.index(kill.step) for kill in many]
    assert order == sorted(order)
