"""Processes that pass messages on are killed and paused, and each output appears once all the same."""

import random
import signal
import time

import psutil
import pytest

from tests.adapters.kafka.broker import Broker
from tests.adapters.kafka.child import pass_on
from tests.adapters.kafka.line import Line
from tests.support.forked import Forked

EACH = 300
WAIT_S = 60


def wait(look, what, *children):
    deadline = time.monotonic() + WAIT_S
    while not look():
        assert all(child.poll() is None for child in children), [child.err for child in children]
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.mark.parametrize("rounds", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_processes_killed_at_any_time_give_each_output_once_and_in_order(kafka_bootstrap, tmp_path, rounds):
    line = Line(Broker(kafka_bootstrap), 3)

    def start():
        return Forked(pass_on, kafka_bootstrap, line.source, line.target, folder=tmp_path)

    children = [start(), start()]
    try:
        for number in range(rounds):
            before = line.committed()
            line.send(EACH, first=number * EACH)
            wait(lambda before=before: line.committed() > before, "progress", *children)
            time.sleep(random.uniform(0, 0.2))
            victim = children.pop(random.randrange(2))
            victim.send_signal(signal.SIGKILL)
            victim.close()
            children.append(start())
        wait(line.is_through(rounds * EACH), "all offsets", *children)
    finally:
        for child in children:
            child.close()
    line.check_once_and_in_order(rounds * EACH)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["begin_transaction", "send_offsets_to_transaction", "commit_transaction"])
@pytest.mark.parametrize("fate", [signal.SIGCONT, signal.SIGKILL])
def test_a_process_stopped_within_a_transaction_is_fenced_by_whoever_takes_over(
    kafka_bootstrap, tmp_path, step, fate
):
    line = Line(Broker(kafka_bootstrap), 2)
    line.send(100)
    zombie = Forked(pass_on, kafka_bootstrap, line.source, line.target, step, folder=tmp_path)
    heir = None
    try:
        process = psutil.Process(zombie.pid)
        wait(lambda: process.status() == psutil.STATUS_STOPPED, "a zombie", zombie)
        heir = Forked(pass_on, kafka_bootstrap, line.source, line.target, folder=tmp_path)
        wait(line.is_through(100), "all offsets", heir)
        zombie.send_signal(fate)
        line.send(100, first=100)
        wait(line.is_through(200), "all offsets", heir)
        if fate is signal.SIGCONT:
            time.sleep(2)  # what the one that came back might still do
            assert zombie.poll() is None, zombie.err
    finally:
        for child in filter(None, (zombie, heir)):
            child.close()
    line.check_once_and_in_order(200)


@pytest.mark.slow
def test_an_heir_waits_for_a_transaction_that_may_still_be_committed(kafka_bootstrap, tmp_path):
    line = Line(Broker(kafka_bootstrap))
    line.send(100)
    step, long_ms = "commit_transaction", 30_000
    sleeper = Forked(pass_on, kafka_bootstrap, line.source, line.target, step, long_ms, folder=tmp_path)
    heir = None
    try:
        process = psutil.Process(sleeper.pid)
        wait(lambda: process.status() == psutil.STATUS_STOPPED, "a sleeper", sleeper)
        heir = Forked(pass_on, kafka_bootstrap, line.source, line.target, folder=tmp_path)
        time.sleep(5)  # the heir has the partition, and its offset is undecided
        assert line.arrived() == []
        assert line.broker.has_open_transaction(line.target, 1)
        sleeper.send_signal(signal.SIGCONT)
        wait(line.is_through(100), "all offsets", heir)
    finally:
        for child in filter(None, (sleeper, heir)):
            child.close()
    line.check_once_and_in_order(100)
