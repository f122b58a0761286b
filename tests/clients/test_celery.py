"""Celery: a task is a message, and a worker of Celery runs our dead letters."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
from celery import Celery

from idempotent import Outcome, keys
from idempotent.testing.adapter_contract import until
from tests.clients.service import TIMEOUT_S
from tests.project.house import ROOT

TASK_ID = "5b9e0ff4-0a8c-4c86-a8d6-f3b6f6a0e2d1"


@pytest.fixture
def send(rabbit, queue):
    """`send(**options)` sends a task, as an application does that does not have its code."""
    with Celery("shop", broker=rabbit.url, set_as_current=False) as app:

        def send_task(**options):
            app.send_task("shop.pay", (7,), {"currency": "€"}, queue=queue, **options)

        app.conf.task_default_queue = queue
        yield send_task


def test_a_task_has_its_id_in_a_header_and_no_message_id(send, serve_queue):
    send()
    assert serve_queue().work(1) == [Outcome.REJECTED]


def test_with_the_task_id_as_the_key_a_task_sent_twice_is_one(send, serve_queue):
    for _ in range(2):
        send(task_id=TASK_ID)
    service = serve_queue(key=keys.celery)
    assert service.work(2) == [Outcome.PROCESSED, Outcome.DUPLICATE]
    (effect,) = service.effects
    arguments, named, _embedded = effect.json()
    assert (arguments, named) == ([7], {"currency": "€"})
    assert (effect.headers["task"], effect.headers["id"]) == ("shop.pay", TASK_ID)
    assert effect.raw.properties.correlation_id == TASK_ID
    assert effect.raw.properties.delivery_mode == 2


def test_a_task_that_was_redriven_is_handled(send, serve_queue):
    send(task_id=TASK_ID)
    service = serve_queue(key=keys.celery)
    service.bury()
    service.redrive()
    assert service.effects[0].json()[0] == [7]


@pytest.mark.slow
def test_a_worker_of_celery_runs_a_dead_letter(send, rabbit, queue, serve_queue, tmp_path):
    send(task_id=TASK_ID)
    serve_queue(key=keys.celery).bury()
    ran = tmp_path / "ran"
    with celery_worker(rabbit.url, f"{queue}.dead", ran):
        until(lambda: ran.exists() and ran.read_text(), "a task that ran")
    assert ran.read_text() == '[7, "\\u20ac"]\n'
    assert rabbit.depth(f"{queue}.dead") == 0


@contextmanager
def celery_worker(url, queue, ran):
    words = ["-A", "tests.clients.celery_app", "worker", "--pool=solo", "--loglevel=ERROR"]
    alone = ["--without-gossip", "--without-mingle", "--without-heartbeat", f"--queues={queue}"]
    environ = {**os.environ, "BROKER": url, "RAN": str(ran)}
    worker = subprocess.Popen(
        [sys.executable, "-m", "celery", *words, *alone], cwd=ROOT, env=environ, stdout=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        worker.terminate()
        try:
            worker.wait(TIMEOUT_S)
        finally:
            worker.kill()
