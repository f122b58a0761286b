"""RepeatingThread: the thread of all that is renewed and repeated."""

import gc
import os
import threading
import time

from idempotent.checkers.repeating import RepeatingThread
from tests.support.logs import logged
from tests.worker.running import until

NAME = "idempotent-test"


class Counting:
    """Counts the calls, and says no more than that."""

    def __init__(self, interval_s=0.01, **options):
        self.calls = 0
        self.thread = RepeatingThread(self.count, NAME, interval_s, **options)

    def count(self):
        self.calls += 1


def threads():
    return [each for each in threading.enumerate() if each.name == NAME]


def test_a_call_that_raises_is_logged_and_the_next_one_comes(caplog):
    calls = []

    def fail():
        calls.append(1)
        raise ZeroDivisionError

    thread = RepeatingThread(fail, NAME, 0.01)
    thread.start()
    until(lambda: len(calls) > 2)
    thread.stop(None)
    assert {record.work for record in logged(caplog, "background_call_failed")} == {NAME}


def test_it_ends_when_it_is_stopped_and_starts_again():
    counting = Counting()
    for _ in range(2):
        counting.thread.start()
        counting.thread.start()
        assert len(threads()) == 1
        counting.calls = 0
        until(lambda: counting.calls)
        counting.thread.stop(None)
        assert not threads()


def test_it_ends_when_the_object_of_its_method_is_collected():
    counting = Counting()
    counting.thread.start()
    until(lambda: counting.calls)
    counting = None
    gc.collect()
    until(lambda: not threads())


def test_work_ends_it_by_its_answer():
    thread = RepeatingThread(lambda: False, NAME, 0.0)
    thread.start()
    until(lambda: not thread.runs)


def test_it_is_woken_before_its_time_but_not_within_its_pause():
    counting = Counting(None, pause_s=1.0)
    counting.thread.start()
    time.sleep(0.1)
    assert counting.calls == 0
    counting.thread.wake()
    until(lambda: counting.calls == 1)
    began = time.monotonic()
    counting.thread.wake()
    until(lambda: counting.calls == 2)
    assert time.monotonic() - began > 0.5
    counting.thread.stop(None)


def test_a_child_starts_a_thread_of_its_own():
    counting = Counting()
    counting.thread.start()
    until(lambda: counting.calls)
    child = os.fork()
    if child == 0:
        counting.calls = 0
        found = [counting.thread.runs]
        counting.thread.start()
        until(lambda: counting.calls)
        os._exit(0 if found == [False] and len(threads()) == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert counting.thread.runs
    counting.thread.stop(None)
