"""An adapter that is open while a test looks at it."""

import time
from contextlib import contextmanager

from idempotent import Outcome, Registry, Result
from idempotent.adapters.activemq import StompAdapter
from idempotent.checkers import MemoryChecker
from tests.adapters.activemq.member import DEADLINE_S, QUICK
from tests.support.services.activemq import PASSWORD, USER

ACK = Result(Outcome.PROCESSED)
# A call that waited for a broker that does not answer would take ten seconds, `connect_timeout_s`.
IN_TIME_S = 5.0


@contextmanager
def opened(url, *subjects, **options):
    registry = Registry()
    for subject in subjects:
        registry.consumer(subject, checker=MemoryChecker())(lambda message: None)
    adapter = StompAdapter(url, **{"backoff": QUICK, **options})
    try:
        adapter.open(tuple(registry.consumers.values()))
        yield adapter
    finally:
        adapter.close()


def with_user(url, password=PASSWORD):
    return url.replace("://", f"://{USER}:{password}@")


def receives_nothing_in_time(adapter):
    began = time.monotonic()
    assert adapter.receive(1, 0.1) == []
    assert time.monotonic() - began < IN_TIME_S
    return True


def until(look):
    deadline = time.monotonic() + DEADLINE_S
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def one_consumer(subject):
    registry = Registry()
    registry.consumer(subject, checker=MemoryChecker())(lambda message: None)
    return registry
