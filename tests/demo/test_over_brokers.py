"""The demo's flights over real brokers: consumers and brokers die, and each flight is booked once."""

import json
import os
import subprocess
import sys

import pytest
from rich.console import Console

from examples.demo.command import over_broker
from examples.demo.demonstration import prepared
from examples.demo.flights import read_flights
from examples.demo.live import LiveRun, batches
from examples.demo.schedule import Settings
from examples.demo.stage.leftovers import left_over
from examples.demo.stage.places import place_at
from examples.demo.stage.producer import Producer
from examples.demo.stores import Stores

FEW = Settings(flights=4000, kills=2, duplicates=0.1)


def report_of(server, url, checker):
    """Of a run in whose middle the broker is killed."""

    def restart():
        server.kill()
        server.start()

    return over_broker(Console(quiet=True), FEW, url, checker, restart=restart)


def demand_truth(report):
    assert report.kept_promise, report.as_json()
    assert report.comparison.equal
    assert report.truth.flights == FEW.flights
    assert (report.counts.left, report.counts.kills >= FEW.kills, report.counts.restarts) == (0, True, 1)


@pytest.mark.slow
def test_each_flight_is_booked_once_over_rabbitmq(private_rabbitmq, mysql_url):
    server = private_rabbitmq()
    report = report_of(server, server.url, f"transactional+{mysql_url}")
    demand_truth(report)
    assert report.counts.sent == 4400
    assert report.counts.duplicates > 0


@pytest.mark.slow
def test_each_flight_is_booked_once_over_activemq(private_activemq, mysql_url):
    server = private_activemq()
    report = report_of(server, server.url, f"transactional+{mysql_url}")
    demand_truth(report)
    assert report.counts.duplicates > 0


@pytest.mark.slow
@pytest.mark.parametrize("checker", ["transactional", "offsets"])
def test_each_flight_is_booked_once_over_kafka(checker, private_kafka, mysql_url):
    server = private_kafka()
    report = report_of(server, f"kafka://{server.url}", f"{checker}+{mysql_url}")
    demand_truth(report)
    # Kafka's own offsets were set back to 0, and the stored ones win.
    assert report.counts.rewinds == (checker == "offsets")


@pytest.mark.slow
def test_what_comes_after_the_silence_is_consumed_too(rabbitmq_url, tmp_path):
    """After a kill a group may take long to rebalance: silence does not mean that the broker has nothing."""
    settings, sent = Settings(flights=100, kills=0, duplicates=0.0), []
    place = place_at(rabbitmq_url, "demo_flights_late", settings.batch_size)
    stores = Stores(None, tmp_path)

    def after_one_more(*about):
        if not sent:
            sent.append(Producer(place.adapter, batches(place.subject, list(read_flights(1)), [0])))
            sent[0].start()
            sent[0].join()
        return left_over(*about)

    run = LiveRun(settings, stores, place, tmp_path, find_left=after_one_more)
    with prepared(stores, keep=False):
        try:
            run.deliver(lambda: None)
            report = run.compare()
        finally:
            place.remove()
    assert (report.kept_promise, report.counts.left) == (True, 0), report.as_json()
    assert (report.counts.delivered, report.counts.duplicates) == (101, 1)


def demo(*words, **environ):
    return subprocess.run(
        [sys.executable, "-m", "examples.demo", "flights", "--flights", "2000", "--kills", "1", *words],
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_the_command_shows_what_it_did_and_no_password(rabbitmq_url):
    done = demo("--broker", rabbitmq_url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "each of the 2,000 flights is booked exactly once".casefold() in done.stdout.casefold()
    assert "broker_" not in done.stderr


@pytest.mark.slow
def test_with_the_checker_switched_off_it_fails_and_says_what_differs(rabbitmq_url):
    done = demo("--broker", rabbitmq_url, "--json", IDEMPOTENT_DISABLED="all")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["repeated"] > 0
    assert not report["ok"]


@pytest.mark.slow
@pytest.mark.parametrize("broker", [[], ["--broker", "stomp://localhost:1"]], ids=["none", "ActiveMQ"])
def test_offsets_without_kafka_are_refused(broker, tmp_path):
    done = demo(*broker, "--checker", f"offsets+sqlite:///{tmp_path}/o.db")
    assert done.returncode == 3
    assert "kafka://" in done.stderr


@pytest.mark.slow
def test_a_broker_that_the_demo_does_not_know_is_refused():
    done = demo("--broker", "memory://flights")
    assert done.returncode == 3
    assert "amqp://" in done.stderr


@pytest.mark.slow
def test_the_script_of_make_names_the_brokers_that_it_knows():
    done = subprocess.run(
        [sys.executable, "-m", "tests.demo", "flights", "nats"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "rabbitmq, activemq, kafka" in done.stderr
