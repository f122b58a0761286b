"""docs/kubernetes.md: its manifests fit Kubernetes, its unit fits systemd, and its worker answers its probes."""

import re
import shlex
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml

from idempotent.migrations import upgrade
from tests.support.services.process import free_port
from tests.support.services.waiting import wait_until_it_answers

PAGE = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()
METRICS = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
# Of a worker: what it gives to cancelled tasks, and to closing, after its drain (docs/workers.md, "How it stops").
AFTER_DRAIN_S = 2 + 25
SHOP = """
from idempotent import Message, consumer


@consumer("orders.paid", group="booking", checker="db")
def book(message: Message) -> None: ...
"""


def blocks(language, page=PAGE):
    return re.findall(rf"^```{language}\n(.+?)^```$", page, re.MULTILINE | re.DOTALL)


def manifest(kind):
    return next(each for each in map(yaml.safe_load, blocks("yaml")) if each["kind"] == kind)


def pod(kind):
    return manifest(kind)["spec"]["template"]["spec"]


def words_of_unit():
    """The command of the unit, without its program."""
    [unit] = blocks("ini")
    return shlex.split(re.search(r"^ExecStart=(.+)$", unit, re.MULTILINE)[1])[1:]


@pytest.mark.parametrize("kind", ["Job", "Deployment"])
def test_a_manifest_fits_the_schema_of_kubernetes(kind):
    kubernetes_validate = pytest.importorskip("kubernetes_validate", exc_type=ImportError)
    kubernetes_validate.validate(manifest(kind), kubernetes_validate.latest_version(), strict=True)


def test_a_misspelt_field_does_not_fit():
    kubernetes_validate = pytest.importorskip("kubernetes_validate", exc_type=ImportError)
    wrong = manifest("Deployment")
    wrong["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="livenesProbe"):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_the_worker_may_end_before_it_is_killed():
    drain_s = float(option("--drain-timeout"))
    assert pod("Deployment")["terminationGracePeriodSeconds"] >= drain_s + AFTER_DRAIN_S
    [unit] = blocks("ini")
    assert int(re.search(r"TimeoutStopSec=(\d+)", unit)[1]) >= drain_s + AFTER_DRAIN_S


def test_prometheus_finds_the_pods_and_their_port():
    [monitor] = map(yaml.safe_load, blocks("yaml", METRICS))
    spec = monitor["spec"]
    template = manifest("Deployment")["spec"]["template"]
    assert spec["selector"]["matchLabels"] == template["metadata"]["labels"]
    [container] = template["spec"]["containers"]
    assert {each["port"] for each in spec["podMetricsEndpoints"]} == {
        each["name"] for each in container["ports"]
    }


def test_the_unit_runs_what_the_deployment_runs():
    [container] = pod("Deployment")["containers"]
    of_containers = {"--metrics-address=0.0.0.0", "--log-format=json"}
    assert words_of_unit() == [
        word for word in container["command"][1:] + container["args"] if word not in of_containers
    ]


def test_the_unit_is_one_of_systemd(tmp_path):
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd is not installed here")
    [unit] = blocks("ini")
    path = tmp_path / "shop-worker.service"
    path.write_text(unit.replace("/opt/shop/bin/idempotent", sys.executable))
    done = subprocess.run(
        [analyze, "verify", str(path)], check=False, capture_output=True, text=True, timeout=60
    )
    about = [line for line in done.stderr.splitlines() if path.name in line]
    assert (done.returncode, about) == (0, [])


@pytest.mark.slow
def test_the_worker_answers_its_probes_and_ends_by_sigterm(tmp_path):
    [container] = pod("Deployment")["containers"]
    (tmp_path / "shop.py").write_text(SHOP)
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    upgrade(url)
    port = free_port()
    command = [
        word.replace("9000", str(port)).replace("0.0.0.0", "127.0.0.1")
        for word in container["command"] + container["args"]
    ]
    environ = {"IDEMPOTENT_BROKER": "memory://shop", "IDEMPOTENT_URL": url, "PYTHONPATH": ":".join(sys.path)}
    worker = subprocess.Popen([sys.executable, "-m", *command], cwd=tmp_path, env=environ)
    try:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            get = container[probe]["httpGet"]
            assert get["port"] in [each["name"] for each in container["ports"]]
            probe_url = f"http://127.0.0.1:{port}{get['path']}"
            wait_until_it_answers(partial(urlopen, probe_url, timeout=10), partial(check_alive, worker))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(pod("Deployment")["terminationGracePeriodSeconds"]) == 0
    finally:
        worker.kill()
        worker.wait()


def check_alive(worker):
    assert worker.poll() is None


def option(name):
    [container] = pod("Deployment")["containers"]
    return dict(word.split("=", 1) for word in container["args"])[name]
