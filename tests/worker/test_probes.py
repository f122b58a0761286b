"""What probes, people and Prometheus read over HTTP."""

import json
import re
import socket
import threading
from contextlib import closing
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from idempotent import Message, Worker
from idempotent.adapters import MemoryAdapter
from idempotent.checkers import AbstractIdempotentChecker, MemoryChecker
from idempotent.errors import ConfigurationError, StoreUnavailableError
from idempotent.worker.health import Health
from idempotent.worker.health_file import READY
from idempotent.worker.probes import HealthServer
from tests.worker.running import SUBJECT, Running, consumer_of, publish, until


class Adapter(MemoryAdapter):
    there = True

    @property
    def connected(self):
        return self.there


def read(server, path):
    """The status, and the JSON."""
    try:
        with urlopen(f"{server.url}{path}") as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def status(server, path):
    return read(server, path)[0]


def gauge(server):
    """The value of `idempotent_ready`; None: there is no such series."""
    with urlopen(f"{server.url}/metrics") as answer:
        found = re.search(r"(?m)^idempotent_ready (\S+)$", answer.read().decode())
    return None if found is None else float(found[1])


@pytest.mark.parametrize("is_async", [False, True])
def test_a_worker_starts_is_ready_loses_its_broker_and_stops(broker, registry, is_async):
    consumer_of(registry, lambda _: None, is_async=is_async)
    adapter = Adapter(broker)
    worker = Worker(registry, adapter)
    with HealthServer([worker.health], port=0) as server:
        assert [status(server, f"/{path}") for path in ("livez", "readyz", "startedz")] == [200, 503, 503]
        assert read(server, "/livez")[1]["served"][0]["state"] == "starting"
        running = Running(worker)
        until(lambda: status(server, "/readyz") == 200)
        assert status(server, "/startedz") == 200
        assert gauge(server) == 1.0
        adapter.there = False
        until(lambda: status(server, "/readyz") == 503)
        assert gauge(server) == 0.0
        code, body = read(server, "/livez")
        assert (code, body["served"][0]["state"]) == (200, "connecting")
        worker.stop()
        running.join()
        assert read(server, "/livez")[1]["served"][0]["state"] == "stopped"
        assert status(server, "/readyz") == 503
        assert gauge(server) is None


class WithoutAdmin(MemoryChecker):
    """Its keys cannot be looked up."""

    admin = AbstractIdempotentChecker.admin


@pytest.mark.parametrize("kind", [MemoryChecker, WithoutAdmin])
def test_a_store_that_is_away_is_in_the_metrics_without_any_traffic(broker, registry, kind):
    there = False

    class Checker(kind):
        def ping(self):
            if not there:
                raise StoreUnavailableError("gone")

    consumer_of(registry, lambda _: None, checker=Checker())
    worker = Worker(registry, MemoryAdapter(broker))
    with HealthServer([worker.health], port=0) as server:
        running = Running(worker)
        until(lambda: read(server, "/readyz")[1]["served"][0]["state"] == "store")
        assert gauge(server) == 0.0
        there = True
        until(lambda: gauge(server) == 1.0)
        worker.stop()
        running.join()


@pytest.mark.parametrize("is_async", [False, True])
def test_what_runs_is_shown_and_a_handler_that_hangs_ends_the_life(broker, registry, is_async):
    goes_on = threading.Event()
    checker = MemoryChecker()
    consumer = consumer_of(registry, lambda _: goes_on.wait(60), is_async=is_async, checker=checker)
    publish(broker, "7", "8")
    worker = Worker(registry, MemoryAdapter(broker, until_empty=True), concurrency=2)
    with (
        HealthServer([worker.health], port=0, hang_after_s=0.3) as strict,
        HealthServer([worker.health], port=0, metrics=False) as patient,
    ):
        running = Running(worker)
        until(lambda: status(strict, "/livez") == 503)
        code, body = read(patient, "/livez")
        (shown,) = body["served"]
        assert (code, shown["state"]) == (200, "ready")
        assert shown["in_progress"] == {consumer.name: 2}
        assert {run["key"] for run in shown["running"]} == {f"{SUBJECT}:default:7", f"{SUBJECT}:default:8"}
        assert all(run["running_s"] >= 0.3 and run["consumer"] == consumer.name for run in shown["running"])
        assert read(strict, "/livez")[1]["served"][0]["state"] == "hangs"
        assert status(strict, "/readyz") == 200
        code, body = read(patient, "/metrics")
        assert (code, body) == (404, {"pages": ["/livez", "/readyz", "/startedz"]})
        goes_on.set()
        running.join()


def test_held_deliveries_are_shown(broker, registry):
    checker = MemoryChecker()
    consumer = consumer_of(registry, lambda _: None, checker=checker)
    elsewhere = checker._claim(
        consumer.binding.requests.after_a_death(consumer.binding.requests.of(Message(SUBJECT, id="1")))
    )
    publish(broker, "1")
    worker = Worker(registry, MemoryAdapter(broker, until_empty=True))
    with HealthServer([worker.health], port=0) as server:
        running = Running(worker)
        until(lambda: read(server, "/readyz")[1]["served"][0].get("held") == {consumer.name: 1})
        with urlopen(f"{server.url}/metrics") as answer:
            text = answer.read().decode()
        assert f'idempotent_held{{consumer="{consumer.name}"}} 1.0' in text
        assert f'idempotent_in_progress{{consumer="{consumer.name}"}} 0.0' in text
        checker.protocol.release(elsewhere.claim)
        running.join()


def test_the_worst_of_two_is_the_answer():
    good, bad = Health(), Health()
    with HealthServer([good, bad], port=0, metrics=False) as server:
        good.beat(READY)
        assert status(server, "/readyz") == 503
        bad.beat(READY)
        assert status(server, "/readyz") == 200


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/startedz", "/metrics", "/nothing"])
def test_head_is_answered_as_get_without_the_body(path):
    with HealthServer([Health()], port=0) as server:
        answers = []
        for method in ("GET", "HEAD"):
            with socket.create_connection((server.address, server.port)) as connection:
                connection.sendall(f"{method} {path} HTTP/1.0\r\n\r\n".encode())
                with connection.makefile("rb") as answer:
                    answers.append(answer.read().split(b"\r\n\r\n", 1))
    (head, body), (its_head, its_body) = answers
    assert body
    assert its_body == b""
    kept = re.compile(rb"(?m)^(HTTP.*|Content-Type.*)\r")
    assert kept.findall(its_head) == kept.findall(head)


def test_a_port_that_is_taken_is_an_error_that_names_it():
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"cannot listen on port {port} of 127.0.0.1 .*or 0"):
            HealthServer([Health()], port=port)


@pytest.mark.parametrize(
    ("served", "options"),
    [
        ([], {"port": 0}),
        (Health(), {"port": 0}),
        (["worker"], {"port": 0}),
        ([Health()], {"port": 65536}),
        ([Health()], {"port": True}),
        ([Health()], {"port": 0, "hang_after_s": 0}),
    ],
)
def test_what_it_cannot_serve_is_an_error(served, options):
    with pytest.raises(ConfigurationError):
        HealthServer(served, **options)


def test_who_has_registered_a_collector_can_serve_it_too():
    for _ in range(2):
        with HealthServer([Health()], port=0) as server, urlopen(f"{server.url}/metrics") as answer:
            assert answer.read().decode().count("# TYPE idempotent_outcomes_total counter") == 1
