"""When nothing comes any more, and what a broker still holds then: unsettled messages, or dead letters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeAlias

from idempotent.adapters.base import Adapter
from idempotent.checkers import MemoryChecker
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.errors import AdapterError
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.registry import Registry

LOOKS: Final = 3
"""How often consumers may go on before the messages still on the broker count as left.

Silence does not prove that the broker has nothing: after a kill a group may take long to rebalance, or a message waits
for a lease to end. Only what is there after several silences is left.
"""
FindLeft: TypeAlias = Callable[[Adapter, str, str, AbstractIdempotentChecker], list[Message]]
"""The type of `left_over`."""
_CONNECT_S: Final = 60.0
_QUIET_S: Final = 3.0
_AT_ONCE: Final = 500
_ACK: Final = Result(Outcome.PROCESSED)


class Silence:
    """Measures from the last change of a count, or from the last `restart`."""

    def __init__(self) -> None:
        self._count = -1
        self._since = time.monotonic()

    def seconds(self, count: int) -> float:
        """Seconds since the count changed."""
        if count != self._count:
            self._count = count
            self.restart()
        return time.monotonic() - self._since

    def restart(self) -> None:
        """Measure from now, as if the count had changed."""
        self._since = time.monotonic()


def left_over(
    adapter: Adapter, subject: str, group: str, checker: AbstractIdempotentChecker
) -> list[Message]:
    """The messages that a group would still receive, as many as the adapter takes at once. They stay on the broker.

    Args:
        adapter: not open; closed afterwards.
        subject: the queue or topic.
        group: the consumers' group.
        checker: the group's, because an adapter may read the group's offsets from it; closed afterwards.

    Raises:
        AdapterError: the broker cannot be used.
    """
    try:
        return _received(adapter, subject, group, checker, acknowledge=False)
    finally:
        checker.close()


def letters(adapter: Adapter, source: str) -> list[Message]:
    """All dead letters, read with a group of its own and acknowledged.

    `source` is their queue or topic, as `Adapter.dead_letter_subject` names it. The adapter is not open, and is closed
    afterwards. Raises as `left_over`.
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
                        f"{subject}: no connection within {_CONNECT_S:.0f} s, so what is left is not known"
                    )
            for delivery in adapter.receive(_AT_ONCE, 0.1):
                last = time.monotonic()
                messages.append(delivery.message)
                if acknowledge:
                    adapter.settle(delivery, _ACK)
    finally:
        adapter.close()
    return messages
