"""Two drivers with one run, of which one or both are killed or paused at random."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import replace

import psutil

from tests.adapters.spark.support import sessions
from tests.support.services.process import die_with_this_process

POINTS = ("after_begin", "after_prepare", "before_publish", "after_publish", "before_commit")
TRIALS = 20
# So that a driver that was paused is soon taken over.
LEASE_S = 2.0
# More than it takes the other driver to take over, and publish, on a machine that has time.
PAUSE_S = 30.0
# What a driver says that came too late: the run is another's, or the other's commit is in the table.
EXPECTED = ("taken over by another driver", "ConcurrentTransactionException")


class Rival:
    """A driver in a process of its own, with its JVM and workers."""

    def __init__(self, job, folder, environ):
        self._err = (folder / f"{time.monotonic_ns()}.err").open("w+")
        self._process = subprocess.Popen(
            [*die_with_this_process(), sys.executable, *job.words],
            cwd=sessions.ROOT,
            env=os.environ | {"PYTHONPATH": str(sessions.ROOT)} | environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._err,
        )

    @property
    def err(self):
        self._err.seek(0)
        return self._err.read()

    def poll(self):
        return self._process.poll()

    def is_paused(self):
        return self.poll() is None and psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED

    def send(self, number):
        with suppress(psutil.NoSuchProcess):
            me = psutil.Process(self._process.pid)
            for process in (me, *me.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)

    def wait(self):
        return self._process.wait()

    def close(self):
        if self.poll() is None:
            self.send(signal.SIGKILL)
            self._process.wait()
        self._err.close()


def fight(job, chance, folder, environ):
    """Let two drivers do one run, and strike at random; their exit codes."""
    kinds = [chance.choice((signal.SIGSTOP, signal.SIGKILL)), chance.choice((None, signal.SIGKILL))]
    # Mostly at once: a moment later the driver may have ended.
    strikes = [each and (chance.choice(POINTS), 2.0 * chance.random() ** 3, int(each)) for each in kinds]
    takeover = chance.random() < 0.5
    delay_s = chance.uniform(0, 3.0)
    with ExitStack() as opened:
        first = Rival(replace(job, strike=strikes[0], lease_s=LEASE_S), folder, environ)
        opened.callback(first.close)
        time.sleep(delay_s)
        second = Rival(replace(job, strike=strikes[1], lease_s=LEASE_S, takeover=takeover), folder, environ)
        opened.callback(second.close)
        paused_at = None
        while first.poll() is None or second.poll() is None:
            if not first.is_paused():
                paused_at = None
            elif paused_at is None:
                paused_at = time.monotonic()
            # A driver that is paused in a transaction has its locks: the other one waits for it.
            elif second.poll() is not None or time.monotonic() - paused_at > PAUSE_S:
                first.send(signal.SIGCONT)
            time.sleep(0.05)
        codes = [first.wait(), second.wait()]
        said = [each.err for each in (first, second)]
    for code, text in zip(codes, said, strict=True):
        assert code in (0, -signal.SIGKILL) or any(each in text for each in EXPECTED), text[-5000:]
    return codes
