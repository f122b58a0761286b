"""What is in a queue or topic at the end: what nobody has settled, or the dead letters."""

from __future__ import annotations

import time
from typing import Final

from idempotent.adapters.base import Adapter
from idempotent.checker import AbstractIdempotentChecker
from idempotent.checkers.memory import MemoryChecker
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.registry import Registry
from idempotent.testing.torture.job import GROUP

_CONNECT_S: Final = 60.0
_QUIET_S: Final = 3.0
_AT_ONCE: Final = 500
_ACK: Final = Result(Outcome.PROCESSED)


def received(adapter: Adapter, subject: str, checker: AbstractIdempotentChecker | None) -> list[Message]:
    """Everything that comes until nothing more does; acknowledged.

    Args:
        adapter: not open; closed afterwards.
        subject: where from.
        checker: of the group whose messages these are, which an adapter may ask where it has come to; None: a reader of
            its own group.

    Raises:
        AdapterError: the broker cannot be used.
    """
    group = f"{GROUP}-reader" if checker is None else GROUP
    consumer = Registry().consumer(subject, group=group, checker=checker or MemoryChecker())(lambda _: None)
    messages: list[Message] = []
    try:
        adapter.open([consumer])
        until, last = time.monotonic() + _CONNECT_S, time.monotonic()
        while time.monotonic() - last < _QUIET_S:
            if not adapter.connected and time.monotonic() < until:
                last = time.monotonic()
            for delivery in adapter.receive(_AT_ONCE, 0.1):
                last = time.monotonic()
                messages.append(delivery.message)
                adapter.settle(delivery, _ACK)
    finally:
        adapter.close()
    return messages
