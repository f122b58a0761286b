"""Consumers whose handler does what the test says."""

from __future__ import annotations

from idempotent import Message, Registry
from idempotent.checkers import MemoryChecker


class OutOfStock(Exception):
    pass


class Ran:
    """Records what ran, and raises what it is told to."""

    def __init__(self, *errors):
        self.errors = list(errors)
        self.messages = []

    def __call__(self, message):
        self.messages.append(message)
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        return len(self.messages)


def consumer_of(ran, **options):
    checker = options.pop("checker", None) or MemoryChecker()

    @Registry().consumer("orders", checker=checker, **options)
    def handle(message):
        return ran(message)

    return handle


def message(message_id="1", **options):
    return Message("orders", id=message_id, **options)
