"""with_duplicates: deliver a stream of messages as an at-least-once broker does, reproducibly by a seed."""

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

    Reads at most `window` messages more than it has delivered, and holds only those and their copies, however long
    the stream.

    Args:
        messages: the stream, each message once.
        seed: the same seed makes the same deliveries.
        rate: the probability that a delivery is followed by another of the same message, from 0 to below 1. It is
            the same for each further copy.
        window: how far a message moves: one that is `window` places behind another never overtakes it, and a copy
            follows the previous delivery after at most `window` places. 0 keeps the order.
        redelivered: the share of copies that the broker marks as redelivered. The others look like messages that
            the producer sent twice.

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
        # Deliveries that are due cannot be overtaken by this message or a later one.
        while due and due[0][0] < place:
            yield from deliver()
        plan(place, message)
    while due:
        yield from deliver()
