"""A relay in a process of its own, to pause or to run by a wrong clock: `python -m tests.outbox.relay_process`."""

import logging
import os
import signal
import subprocess
import sys
import time

import sqlalchemy as sa

from idempotent.adapters import adapter_from_url
from idempotent.outbox import Outbox, Relay
from idempotent.worker.process import on_stop_signal
from tests.project.house import ROOT


class RelayProcess:
    """A relay with a lease of three seconds.

    Args:
        store: has the outbox.
        broker: the URL of the broker.
        ahead_s: how many seconds the clock of the process is ahead of the machine's.
    """

    def __init__(self, store, broker, ahead_s=0.0):
        url = sa.make_url(store.url).render_as_string(hide_password=False)
        arguments = (str(ahead_s), url, store.table, broker)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.outbox.relay_process", *arguments],
            cwd=ROOT,
            env=dict(os.environ),
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    @property
    def number(self):
        """Its process id."""
        return self._process.pid

    def pause(self):
        self._process.send_signal(signal.SIGSTOP)

    def resume(self):
        self._process.send_signal(signal.SIGCONT)

    def stop(self):
        """Returns what it has logged."""
        assert self._process.poll() is None, self._process.communicate()[1][-3000:]
        self._process.terminate()
        log = self._process.communicate(timeout=60)[1]
        assert self._process.returncode == 0, log[-3000:]
        return log


def main(ahead_s, url, table, broker):
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + ahead_s
    time.time_ns = lambda: right_ns() + round(ahead_s * 1e9)
    logging.basicConfig(level=logging.INFO)
    relay = Relay(Outbox(sa.create_engine(url), table=table), adapter_from_url(broker), lease_s=3.0)
    with on_stop_signal(relay.stop):
        relay.run()


if __name__ == "__main__":
    main(float(sys.argv[1]), *sys.argv[2:])
