"""Load: how a worker or a relay is, and what it has in hand. `workers` knows all of this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Final, TypeVar

from idempotent.values import value

K = TypeVar("K")
N = TypeVar("N", int, float)


@value
class Load:
    """How a worker or a relay is, and what it has in hand.

    Attributes:
        ready: what its health says; None: no worker and no relay runs.
        in_progress: handlers that run, by consumer (`subject:group`); a batch handler counts once for each message.
        held: deliveries that wait to be checked again, by consumer.
        longest_s: for how many seconds the handler has run that has run for longest, by consumer; 0: none runs.
        backlog: messages that wait in the broker, by consumer and partition, where that tells. The partition is empty
            where the broker tells one number for the whole queue.
        paused: 1 for a consumer that is paused, 0 for another one.
    """

    ready: bool | None
    in_progress: Mapping[str, int] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)
    longest_s: Mapping[str, float] = field(default_factory=dict)
    backlog: Mapping[tuple[str, str], int] = field(default_factory=dict)
    paused: Mapping[str, int] = field(default_factory=dict)


class Workers:
    """The workers and relays that run in this process."""

    def __init__(self) -> None:
        self._looks: tuple[Callable[[], Load], ...] = ()

    def add(self, look: Callable[[], Load]) -> None:
        """Ask this one too, from now on."""
        self._looks = (*self._looks, look)

    def remove(self, look: Callable[[], Load]) -> None:
        """Do not ask it any more."""
        self._looks = tuple(each for each in self._looks if each != look)

    def load(self) -> Load:
        """The sums over all of them, with 0 for idle consumers; ready if each is."""
        loads = [look() for look in self._looks]
        return Load(
            ready=all(load.ready for load in loads) if loads else None,
            in_progress=_sums(load.in_progress for load in loads),
            held=_sums(load.held for load in loads),
            longest_s=_largest(load.longest_s for load in loads),
            backlog=_largest(load.backlog for load in loads),
            paused=_largest(load.paused for load in loads),
        )


def _sums(counts: Iterable[Mapping[str, int]]) -> Mapping[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)  # keeps zeros
    return total


def _largest(values: Iterable[Mapping[K, N]]) -> Mapping[K, N]:
    largest: dict[K, N] = {}
    for each in values:
        for name, found in each.items():
            largest[name] = max(found, largest.get(name, found))
    return largest


workers: Final = Workers()
