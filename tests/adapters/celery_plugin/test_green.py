"""The pool gevent: all tasks, and the threads of the checkers, share the one thread of the worker."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import pytest

from idempotent.testing.adapter_contract import until
from tests.adapters.celery_plugin.shop import LEASE_S, SETTINGS, Settings, opened, replace
from tests.adapters.rabbitmq.rabbit import Rabbit
from tests.project.house import ROOT
from tests.support.services import is_required
from tests.support.stores import open_store

pytestmark = pytest.mark.slow
DEADLINE_S = 120.0
AT_ONCE = 10


@pytest.fixture(autouse=True)
def needs_gevent(pytestconfig):
    required = is_required(os.environ, option=pytestconfig.getoption("require_services"))
    if not required and importlib.util.find_spec("gevent") is None:
        pytest.skip("gevent is not installed")


@pytest.fixture(params=["redis", "postgres", "postgres-transactional"])
def on_each(request, settings):
    """Settings of an application, over each checker."""
    kind, _, transactional = request.param.partition("-")
    with contextmanager(open_store)(kind, request, reuse=True) as store:
        is_transactional = bool(transactional)
        yield replace(settings, url=store.url, table=store.table, is_transactional=is_transactional)


@contextmanager
def worker(settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that runs 10 tasks at once, and ends when it is told to."""
    words = ["-A", "tests.adapters.celery_plugin.app", "worker", "--pool=gevent", f"--concurrency={AT_ONCE}"]
    alone = ["--without-gossip", "--without-mingle", "--without-heartbeat", f"-n{secrets.token_hex(4)}@test"]
    environ = {**os.environ, SETTINGS: json.dumps(asdict(settings))}
    command = [sys.executable, "-m", "celery", *words, *alone, "--loglevel=WARNING"]
    process = subprocess.Popen(command, cwd=ROOT, env=environ)
    try:
        yield process
        process.terminate()
        assert process.wait(30) in (0, -signal.SIGKILL)
    finally:
        process.kill()
        process.wait()


def runs(settings: Settings, task: str) -> Counter[str]:
    return Counter(
        order for name, _, order in (line.partition(" ") for line in settings.lines()) if name == task
    )


def test_ten_tasks_wait_side_by_side_and_their_copies_have_their_results(on_each):
    orders = [secrets.token_hex(6) for _ in range(AT_ONCE)]
    with opened(on_each) as app, worker(on_each):
        charge = app.tasks["charge"]
        charge.delay("warm").get(timeout=DEADLINE_S)
        began = time.monotonic()
        for copy in range(3):
            sent = [charge.apply_async((order, 2.0), task_id=order) for order in orders]
            if copy == 1:
                assert [result.get(timeout=DEADLINE_S) for result in sent] == [[order, 0] for order in orders]
                took_s = time.monotonic() - began
                for result in sent:
                    result.forget()
        # One after the other they take 20 s.
        assert [result.get(timeout=DEADLINE_S) for result in sent] == [[order, 0] for order in orders]
        assert took_s < 15
    assert runs(on_each, "charge") == Counter(dict.fromkeys([*orders, "warm"], 1))


def test_a_task_keeps_its_lease_while_others_wait(settings):
    order = secrets.token_hex(6)
    with opened(settings) as app, worker(settings), worker(settings):
        charge = app.tasks["charge"]
        sent = charge.apply_async((order, 3 * LEASE_S), task_id=order)
        until(lambda: runs(settings, "charge"), "the task to begin")
        time.sleep(1.5 * LEASE_S)
        for _ in range(AT_ONCE):
            charge.apply_async((order, 0.0), task_id=order)
        assert sent.get(timeout=DEADLINE_S) == [order, 0]
    assert runs(settings, "charge") == {order: 1}


def test_ten_tasks_of_a_killed_worker_run_again(on_each, rabbitmq_url):
    """On RabbitMQ: on Redis, a worker of these pools gives back no messages of another (celery#4976)."""
    settings = replace(on_each, broker=rabbitmq_url)
    orders = [secrets.token_hex(6) for _ in range(AT_ONCE - 1)]
    with opened(settings) as app:
        with worker(settings) as first:
            sent = [app.tasks["charge"].delay(order, 2.0) for order in orders]
            until(lambda: len(runs(settings, "charge")) == len(orders), "all tasks to begin")
            sent.append(app.tasks["die"].delay(False))
            assert first.wait(DEADLINE_S) == -signal.SIGKILL
        with worker(settings):
            found = [result.get(timeout=DEADLINE_S) for result in sent]
    assert found == [*([order, 0] for order in orders), "lived"]
    assert set(runs(settings, "charge").values()) == {2}
    Rabbit(rabbitmq_url).delete(settings.queue)
