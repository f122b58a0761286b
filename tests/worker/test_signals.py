"""A signal drains a worker's process; a second one ends it."""

import signal
import subprocess
import sys

import pytest

from tests.worker.running import WAIT_S

PROGRAM = """
import os, signal, sys, time
from idempotent import Message, Registry, Worker
from idempotent.adapters import MemoryAdapter, MemoryBroker
from idempotent.checkers import MemoryChecker

registry = Registry()

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # whole lines, whichever thread

@registry.consumer("orders", checker=MemoryChecker())
def handle(message):
    say("started", message.id)
    time.sleep(float(sys.argv[1]))
    say("finished", message.id)

class Talking(MemoryAdapter):
    def _acknowledge(self, delivery, result):
        settled = super()._acknowledge(delivery, result)
        say("ack", delivery.message.id)
        return settled

    def _give_back(self, delivery):
        settled = super()._give_back(delivery)
        say("requeue", delivery.message.id)
        return settled

signal.signal(signal.SIGTERM, lambda *_: say("theirs"))
broker = MemoryBroker()
for number in range(10):
    broker.publish(Message("orders", id=str(number)))
summary = Worker(registry, Talking(broker), concurrency=2).run()
say("backlog", broker.backlog("orders"), "abandoned", summary.abandoned)
signal.raise_signal(signal.SIGTERM)
"""


@pytest.fixture
def child(request: pytest.FixtureRequest):
    command = [sys.executable, "-W", "error", "-c", PROGRAM, request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert {process.stdout.readline(), process.stdout.readline()} == {"started 0\n", "started 1\n"}
        yield process
        process.kill()


@pytest.mark.parametrize("child", ["0.7"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_worker_and_then_the_handlers_of_before_are_back(
    child: subprocess.Popen, number: signal.Signals
) -> None:
    child.send_signal(number)
    output, _ = child.communicate(timeout=WAIT_S)
    events = output.splitlines()
    assert sorted(events[:2]) == ["requeue 2", "requeue 3"]
    assert sorted(events[2:6]) == ["ack 0", "ack 1", "finished 0", "finished 1"]
    assert events[6:] == ["backlog 8 abandoned 0", "theirs"]
    assert child.returncode == 0


@pytest.mark.parametrize("child", ["60"], indirect=True)
def test_a_second_signal_ends_it_at_once(child: subprocess.Popen) -> None:
    assert child.stdout is not None
    child.terminate()
    assert child.stdout.readline().startswith("requeue")
    child.terminate()
    output, _ = child.communicate(timeout=WAIT_S)
    assert output.splitlines()[-2:] == ["backlog 10 abandoned 2", "theirs"]
    assert child.returncode == 0
