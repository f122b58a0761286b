"""A process that is killed around a dead letter loses nothing."""

import signal
import subprocess
import sys

import pytest

from idempotent import Registry
from idempotent.adapters.copies import REASON_HEADER
from idempotent.checkers import SqlChecker
from idempotent.migrations import upgrade
from tests.adapters.activemq.member import left, send, until_left, work_until
from tests.adapters.activemq.stomp_client import in_queue

CHILD = """
import os, signal, sys
from idempotent import Registry, Worker
from idempotent.adapters.activemq import StompAdapter
from idempotent.adapters.activemq.connection import StompConnection
from idempotent.checkers import SqlChecker

url, store, name, point = sys.argv[1:]

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

send = StompConnection.send
def sending(self, frame):
    if frame.command == point:
        die()
    send(self, frame)
StompConnection.send = sending

registry = Registry()

@registry.consumer(name, checker=SqlChecker(store, lease_s=1.0), max_attempts=1)
def handle(message):
    if point == "handler":
        die()
    print("effect", flush=True)
    if message.body == b"poison":
        raise ValueError("poison")

Worker(registry, StompAdapter(url), gc_interval_s=None).run()
"""


def killed_at(point, url, store, name):
    child = subprocess.run(
        [sys.executable, "-c", CHILD, url, store, name, point],
        check=False,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    return child.stdout.count("effect")


@pytest.fixture
def store(tmp_path):
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    upgrade(url)
    return url


def counting(name, store, effects):
    registry = Registry()

    @registry.consumer(name, checker=SqlChecker(store, lease_s=1.0), max_attempts=1)
    def handle(message):
        effects.append(message.id)
        if message.body == b"poison":
            raise ValueError("poison")

    return registry


@pytest.mark.parametrize("point", ["SEND", "ACK"], ids=["before the copy", "after it"])
def test_killed_between_the_verdict_and_the_dead_letter_nothing_is_lost(stomp_url, store, name, point):
    send(stomp_url, name, "a", body=b"poison")
    assert killed_at(point, stomp_url, store, name) == 1
    until_left(stomp_url, name, "a")
    effects = []
    work_until(counting(name, store, effects), stomp_url, lambda: not left(stomp_url, name))
    assert effects == []
    letters = in_queue(stomp_url, f"/queue/{name}.dead")
    # One more where the first copy had been confirmed: the same message, by its id.
    assert [letter.id for letter in letters] == ["a"] * (1 if point == "SEND" else 2)
    assert "poison" in letters[0].headers[REASON_HEADER]
