"""An adapter that refuses what it is told to, and a relay that looks often."""

import threading
import time

from idempotent.adapters.memory import MemoryAdapter, MemoryBroker
from idempotent.errors import PublishError
from idempotent.outbox import Relay
from idempotent.policy import Backoff

# For what hangs; a busy machine takes its time.
WITHIN_S = 300.0
SOON = Backoff(initial_s=0.01, maximum_s=0.05)


def until(condition, what="it does not happen"):
    end = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


class Picky(MemoryAdapter):
    """An adapter that notes what it publishes, and refuses or does not answer about some."""

    def __init__(self, refuses=(), silent_about=()):
        super().__init__(MemoryBroker())
        self.published = []
        self.refuses, self.silent_about = set(refuses), set(silent_about)
        self.batches = []

    def publish_many(self, messages):
        self.batches.append(len(messages))
        refused, unknown = {}, {}
        for place, message in enumerate(messages):
            body = message.body.decode()
            if body in self.refuses:
                refused[place] = "too large"
            elif body in self.silent_about:
                unknown[place] = "no answer"
            else:
                self.published.append((message.id, body))
        if refused or unknown:
            raise PublishError("not all", refused=refused, unknown=unknown)

    @property
    def bodies(self):
        return [body for _, body in self.published]


class Silent(Picky):
    """An adapter that waits until it may answer."""

    def __init__(self):
        super().__init__()
        self.asked, self.answer = threading.Event(), threading.Event()

    def publish_many(self, messages):
        self.asked.set()
        assert self.answer.wait(WITHIN_S)
        super().publish_many(messages)


def relay(outbox, adapter, **options):
    options.setdefault("poll_s", 0.05)
    options.setdefault("backoff", SOON)
    return Relay(outbox, adapter, **options)
