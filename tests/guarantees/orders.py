"""What these tests share: messages, consumers, outcomes and a wait."""

from __future__ import annotations

import time

from idempotent import Message, Registry
from idempotent.checkers import MemoryChecker
from idempotent.claims import Completion
from idempotent.errors import StoreUnavailableError
from idempotent.keys import KeySpace

ORDERS = KeySpace("orders", "default")
WAIT_S = 20


def message(name="1", body=b""):
    return Message("orders", body, id=name)


def consumer_of(checker, handle=lambda message: None, **options):
    return Registry().consumer("orders", checker=checker, **options)(handle)


def outcomes(results):
    return [result.outcome.value for result in results]


def wait(look, what):
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if look():
            return
        time.sleep(0.02)
    raise AssertionError(what)


class Refusing(MemoryChecker):
    """Takes no completion of the keys in `refused`, and may renew badly."""

    def __init__(self, *refused, **options):
        super().__init__(**options)
        self.refused = {ORDERS.key(name).hash for name in refused}
        self.bugs = []

    def _complete(self, completion: Completion):
        if completion.claim.key.hash in self.refused:
            raise StoreUnavailableError("not this one")
        return super()._complete(completion)

    def _renew_many(self, claims):
        if self.bugs:
            raise self.bugs.pop()
        return super()._renew_many(claims)
