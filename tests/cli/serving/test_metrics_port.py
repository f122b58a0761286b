"""`--metrics-port`: a worker and a relay in processes of their own, scraped over HTTP."""

import json
import socket
import sys
import time
from contextlib import closing, contextmanager
from subprocess import PIPE
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from idempotent.observe.events import Stage
from tests.cli.test_replay import URL, command, shop, write

__all__ = ["shop"]

ORDERS = "orders.paid:billing"


@contextmanager
def serving(*words):
    """The process, and where it serves."""
    process = command(*words, stderr=PIPE, text=True)
    try:
        for line in process.stderr:
            if "Metrics: " in line:
                break
        yield process, line.split("Metrics: ")[1].split("/metrics")[0]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def read(url):
    try:
        with urlopen(url) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(url):
    """The values by name, without those of other labels than this consumer's."""
    return {
        (sample.name, sample.labels.get("outcome")): sample.value
        for family in text_string_to_metric_families(read(f"{url}/metrics")[1])
        for sample in family.samples
        if sample.labels.get("consumer") == ORDERS and "le" not in sample.labels
    }


def until(look):
    deadline = time.monotonic() + 60
    while not look():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_worker_shows_how_long_its_messages_took_and_what_it_runs(shop):
    orders = [(str(number), {}) for number in range(20)]
    file = write(
        shop / "orders.jsonl", *orders, ("3", {}), ("bad", {"bad": True}), ("slow", {"sleep_s": 600})
    )
    run = ("run", "shop_consumers", "--broker", f"file://{file}", "--checker", f"db={URL}")
    with serving(*run, "--metrics-port", "0") as (_, url):
        until(
            lambda: (
                samples(url).get(("idempotent_in_progress", None)) == 1.0
                and "slow" in read(f"{url}/livez")[1]
            )
        )
        seen = samples(url)
        assert seen["idempotent_outcomes_total", "processed"] == 20
        assert seen["idempotent_outcomes_total", "duplicate"] == 1
        assert seen["idempotent_outcomes_total", "dead"] == 1
        counted = {stage: seen[f"idempotent_{stage.value}_duration_seconds_count", None] for stage in Stage}
        assert counted == {Stage.CLAIM: 22, Stage.HANDLER: 21, Stage.COMPLETION: 20, Stage.SETTLE: 22}
        assert seen["idempotent_lease_lost_total", None] == 0
        assert ("idempotent_store_dead_keys", None) in seen
        code, body = read(f"{url}/readyz")
        (served,) = json.loads(body)["served"]
        assert (code, served["state"]) == (200, "ready")
        assert [run["key"] for run in served["running"]] == [f"{ORDERS}:slow"]
    again = command(
        *run, "--metrics-port", "0", "--log-format", "json", "--log-level", "info", stderr=PIPE, text=True
    )
    try:
        told = next(line for line in map(json.loads, again.stderr) if line["event"] == "health_served")
        assert read(f"{told['url']}/livez")[0] == 200
    finally:
        again.kill()
        again.wait()
        again.stderr.close()


@pytest.mark.slow
def test_a_relay_without_its_broker_lives_and_is_not_ready(cli, project):
    assert cli("migrate", "upgrade", "--url", URL).code == 0
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as silent,
        serving(
            "relay",
            "--outbox",
            URL,
            "--broker",
            f"amqp://127.0.0.1:{silent.getsockname()[1]}",
            "--metrics-port",
            "0",
        ) as (_, url),
    ):
        until(lambda: read(f"{url}/startedz")[0] == 200 or read(f"{url}/livez")[0] == 200)
        assert read(f"{url}/livez")[0] == 200
        assert read(f"{url}/readyz")[0] == 503
        metrics = read(f"{url}/metrics")[1]
        assert "idempotent_outbox_messages" in metrics
        assert "idempotent_ready 0.0" in metrics


def test_a_port_that_is_taken_ends_the_command(cli, shop):
    file = write(shop / "orders.jsonl", ("1", {}))
    run = ("run", "shop_consumers", "--broker", f"file://{file}", "--checker", f"db={URL}")
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        answer = cli(*run, "--metrics-port", str(taken.getsockname()[1]))
    assert answer.code == 3
    assert "choose another port, or 0" in answer.err.replace("\n", " ")
    assert not (shop / "effects.txt").exists()


@pytest.mark.parametrize(("option", "value"), [("--hang-after", "5"), ("--metrics-address", "0.0.0.0")])
def test_an_option_of_the_pages_without_a_port_is_an_error_that_names_it(cli, shop, option, value):
    file = write(shop / "orders.jsonl", ("1", {}))
    run = ("run", "shop_consumers", "--broker", f"file://{file}", "--checker", f"db={URL}")
    answer = cli(*run, option, value)
    assert answer.code == 3
    assert option in answer.err
    assert "--metrics-port" in answer.err
    assert not (shop / "effects.txt").exists()


def test_without_the_extra_the_error_names_it(cli, shop, monkeypatch):
    for name in [
        each for each in sys.modules if each.startswith(("prometheus_client", "idempotent.observe.prom"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    file = write(shop / "orders.jsonl", ("1", {}))
    answer = cli(
        "run", "shop_consumers", "--broker", f"file://{file}", "--checker", f"db={URL}", "--metrics-port", "0"
    )
    assert answer.code == 3
    assert 'pip install "idempotent-consumer[prometheus]"' in answer.err
