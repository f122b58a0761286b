"""What a broker still has at the end: what nobody has settled, or the dead letters."""

from __future__ import annotations

import time
from typing import Final

from idempotent.adapters.base import Adapter
from idempotent.checkers import MemoryChecker
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.errors import AdapterError
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.registry import Registry

LOOKS: Final = 3
"""How often to let consumers finish before what is left counts as left.

That nothing was delivered for a while does not prove that nothing is there: a group may take long to agree who reads
what after a kill, and a lease may be waited for. What is there after several such silences is left.
"""
_CONNECT_S: Final = 60.0
_QUIET_S: Final = 3.0
_AT_ONCE: Final = 500
_ACK: Final = Result(Outcome.PROCESSED)


def left_over(
    adapter: Adapter, subject: str, group: str, checker: AbstractIdempotentChecker
) -> list[Message]:
    """What the group would still get, as far as the adapter takes it at once; given back.

    Args:
        adapter: not open; closed afterwards.
        subject: where from.
        group: whose.
        checker: the group's, which an adapter may ask where it has come to; closed afterwards.

    Raises:
        AdapterError: the broker cannot be used.
    """
    try:
        return _received(adapter, subject, group, checker, acknowledge=False)
    finally:
        checker.close()


def letters(adapter: Adapter, source: str) -> list[Message]:
    """Everything there, for a reader with a group of its own; acknowledged.

    Args:
        adapter: not open; closed afterwards.
        source: where from, as `Adapter.dead_letter_subject` names it.

    Raises:
        AdapterError: the broker cannot be used.
    """
    return _received(adapter, source, "letters-reader", MemoryChecker(), acknowledge=True)


def _received(
    adapter: Adapter, subject: str, group: str, checker: AbstractIdempotentChecker, *, acknowledge: bool
) -> list[Message]:
    consumer = Registry().consumer(subject, group=group, checker=checker)(lambda _: None)
    messages: list[Message] = []
    try:
        adapter.open([consumer])
        last = time.monotonic()
        until, was_connected = last + _CONNECT_S, False
        while time.monotonic() - last < _QUIET_S:
            if not was_connected:
                was_connected, last = adapter.connected, time.monotonic()
                if last > until:
                    raise AdapterError(
                        f"{subject}: no connection within {_CONNECT_S:.0f} s, to see what is there"
                    )
            for delivery in adapter.receive(_AT_ONCE, 0.1):
                last = time.monotonic()
                messages.append(delivery.message)
                if acknowledge:
                    adapter.settle(delivery, _ACK)
    finally:
        adapter.close()
    return messages
