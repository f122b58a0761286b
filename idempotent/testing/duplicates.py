"""with_duplicates: what an at-least-once broker makes of a stream of messages, the same for the same seed."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

from idempotent.errors import ConfigurationError
from idempotent.message import Message


def with_duplicates(
    messages: Iterable[Message],
    *,
    seed: int,
    rate: float = 0.1,
    window: int = 100,
    redelivered: float = 0.5,
) -> Iterator[Message]:
    """Deliver every message at least once, some of them again, in a shuffled order.

    Takes at most `window` messages more than it has delivered, and holds no more than it has taken plus their
    copies, however long the stream.

    Args:
        messages: the stream, each message once.
        seed: the same seed makes the same deliveries.
        rate: how likely a delivery is followed by one more of the same message, from 0 to below 1. A third copy
            follows a second one with the same likelihood.
        window: how far a message moves: one that is `window` places behind another never overtakes it, and a copy
            comes at most `window` places after the delivery before it. 0 keeps the order.
        redelivered: the share of copies that the broker marks as such. The others look like a producer's second
            send.

    Raises:
        ConfigurationError: a number is out of its range.
    """
    if not 0 <= rate < 1:
        raise ConfigurationError(f"rate must be from 0 to below 1, not {rate!r}")
    if not 0 <= redelivered <= 1:
        raise ConfigurationError(f"redelivered must be from 0 to 1, not {redelivered!r}")
    if window < 0:
        raise ConfigurationError(f"window must not be negative, not {window!r}")
    return _deliveries(messages, random.Random(seed), rate, window, redelivered)


def _deliveries(
    messages: Iterable[Message], chance: random.Random, rate: float, window: int, redelivered: float
) -> Iterator[Message]:
    # Each delivery is due at its place in the stream plus a random part of the window.
    due: list[tuple[float, int, Message]] = []
    order = itertools.count()

    def plan(place: float, message: Message) -> None:
        heapq.heappush(due, (place + chance.random() * window, next(order), message))

    def deliver() -> Iterator[Message]:
        place, _, message = heapq.heappop(due)
        yield message
        if chance.random() < rate:
            marked = message.redelivered or chance.random() < redelivered
            plan(place, replace(message, redelivered=marked))

    for place, message in enumerate(messages):
        # What is due now can no longer be overtaken by this message or a later one.
        while due and due[0][0] < place:
            yield from deliver()
        plan(place, message)
    while due:
        yield from deliver()
