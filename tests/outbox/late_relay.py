"""A relay to Kafka that is stopped, as a whole process, between its first read and the publication of what it read."""

import logging
import os
import signal
import sys

from idempotent.adapters.base import Fences
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.outbox import Outbox, Relay
from idempotent.worker.process import on_stop_signal


def say(line):
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Stopped:
    """Stops this process once."""

    def __init__(self):
        self._is_due = True

    def __call__(self, publish, *arguments):
        if not self._is_due:
            return publish(*arguments)
        self._is_due = False
        say("read")
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            return publish(*arguments)
        finally:
            say("went on")


class StoppedFences(Fences):
    """Fences in whose first publication the process is stopped."""

    def __init__(self, fences, stopped):
        self._fences, self._stopped = fences, stopped

    def take(self, buckets):
        self._fences.take(buckets)

    def publish(self, messages, buckets):
        self._stopped(self._fences.publish, messages, buckets)

    def close(self):
        self._fences.close()


class LateAdapter(KafkaAdapter):
    """An adapter in whose first publication the process is stopped."""

    def __init__(self, bootstrap, **options):
        super().__init__(bootstrap, **options)
        self._stopped = Stopped()
        if self.fences is not None:
            self.fences = StoppedFences(self.fences, self._stopped)

    def publish_many(self, messages):
        self._stopped(super().publish_many, messages)


def main(url, table, bootstrap, transactional_id):
    logging.basicConfig(level=logging.INFO)
    options = {"fenced": True, "transactional_id": transactional_id} if transactional_id else {}
    relay = Relay(Outbox(url, table=table), LateAdapter(bootstrap, **options), lease_s=3.0)
    with on_stop_signal(relay.stop):
        relay.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
