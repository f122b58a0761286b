"""Processes of tests: paused, signalled after their end, and reported with their stacks if they hang."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing

import pytest

from tests.support.forked import Forked


def hang_here() -> None:
    os.write(1, b"hangs")
    time.sleep(300)


def do_nothing() -> None:
    pass


def test_a_process_that_hangs_is_reported_with_its_stacks_although_it_is_paused(tmp_path):
    with closing(Forked(hang_here, folder=tmp_path)) as process:
        until = time.monotonic() + 150
        while not process.out and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
        while not process.is_paused() and time.monotonic() < until:
            time.sleep(0.01)
        with pytest.raises(AssertionError, match=r"stopped(.|\n)*in hang_here"):
            process.wait(0.1)


def test_a_process_that_has_ended_is_not_paused_and_takes_no_signal(tmp_path):
    with closing(Forked(do_nothing, folder=tmp_path)) as process:
        assert process.wait(150) == 0
        assert not process.is_paused()
        process.send_signal(signal.SIGCONT)
