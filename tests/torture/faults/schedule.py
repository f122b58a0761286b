"""Which faults can happen to the servers and consumers of a run, and which of them happens when."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Final

from tests.torture.addresses import address_of
from tests.torture.clocks import no_wrong_clocks
from tests.torture.faults.kinds import Fault, FaultKind, Target
from tests.torture.settings import Role, Settings
from tests.torture.stores import EffectStore

HARMS: Final = frozenset(
    {FaultKind.FILL_DISK, FaultKind.MEMORY_ALARM, FaultKind.FULL_LETTERS, FaultKind.FULL_RETRIES}
)
"""Faults that `Servers.harms` carries out."""
# The steps of a consumer; a Spark batch has others.
_STEPS: Final = ("claim", "effect", "complete", "release", "ack")
# No faults in the first and the last part: consumers start, and the effects of the faults show.
_CALM: Final = 0.05
_LONGEST_NTH: Final = 15
_SELDOM: Final = ("release", "renew")
_WRONG_CLOCKS_S: Final = (-86_400.0, -3_600.0, -30.0, 45.0, 7_200.0, 86_400.0)
_DELAYS_S: Final = (0.02, 0.1, 0.3)


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of a run.

    Attributes:
        broker_url: the adapter's URL.
        checker_url: the checker's URL.
        restart_broker: kills the broker, leaves it down for the given seconds, starts it, and returns when it answers.
        restart_store: the same for the store, which must keep everything that it had acknowledged.
        harms: faults that last as long as a context; it is given the subject of the run.
    """

    broker_url: str
    checker_url: str
    restart_broker: Callable[[float], object] | None = None
    restart_store: Callable[[float], object] | None = None
    harms: Mapping[FaultKind, Callable[[str], AbstractContextManager[object]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FeasibleFaults:
    """The faults that can happen in a run, why the others cannot, and the crash points that consumers pass."""

    kinds: tuple[FaultKind, ...]
    missing: Mapping[FaultKind, str]
    points: tuple[str, ...]

    @classmethod
    def of(
        cls, servers: Servers, store: EffectStore, *, is_kafka: bool, outbox: bool = False
    ) -> FeasibleFaults:
        """What can be done to these servers."""
        reasons = {kind: _obstacle(kind, servers, store, is_kafka=is_kafka) for kind in FaultKind}
        steps = (*_STEPS, "commit" if store.is_transactional else "renew", *(["publish"] if outbox else []))
        return cls(
            kinds=tuple(kind for kind, reason in reasons.items() if reason is None),
            missing={kind: reason for kind, reason in reasons.items() if reason is not None},
            points=tuple(f"{when}_{step}" for step in steps for when in ("before", "after")),
        )


def _obstacle(kind: FaultKind, servers: Servers, store: EffectStore, *, is_kafka: bool) -> str | None:
    """Why this fault cannot happen; None: it can."""
    urls = {Target.STORE_CONNECTION: servers.checker_url, Target.BROKER_CONNECTION: servers.broker_url}
    if kind.target in urls and address_of(urls[kind.target]) is None:
        return "no proxy can stand before a file, several servers, or TLS"
    match kind:
        case FaultKind.SHIFT_CLOCK if store.is_file:
            return "SQLite's clock is its machine's"
        case FaultKind.SHIFT_CLOCK if is_kafka:
            return "under libfaketime the waits of librdkafka end at once or never"
        case FaultKind.SHIFT_CLOCK:
            return no_wrong_clocks()
        case FaultKind.RESTART_STORE if servers.restart_store is None:
            return "no command was given (--restart-store)"
        case FaultKind.RESTART_BROKER if servers.restart_broker is None:
            return "no command was given (--restart-broker)"
        case FaultKind.FORGET | FaultKind.EVICT if not store.is_redis:
            return "only Redis can lose keys"
        case _ if kind in HARMS and kind not in servers.harms:
            return "it cannot be done to these servers from here"
        case _:
            return None


def schedule(settings: Settings, kinds: Collection[FaultKind], points: Sequence[str]) -> tuple[Fault, ...]:
    """All faults of a run, in the order of their time.

    A kind that cannot happen changes nothing about the others. Each crash point has its turn before one comes again.
    """
    faults = [fault for kind in kinds for fault in _of_kind(kind, settings, points)]
    return tuple(sorted(faults, key=lambda fault: (fault.at_s, fault.kind.value)))


def _of_kind(kind: FaultKind, settings: Settings, points: Sequence[str]) -> list[Fault]:
    chance = random.Random(f"{kind.value} {settings.seed}")
    count = max(round(settings.seconds / kind.every_s), 1)
    stretch = settings.seconds * (1 - 2 * _CALM) / count
    slots = len(settings.roles) + (kind.target is Target.BROKER_CONNECTION)
    in_turn = _turns(chance, points, count)
    return [
        _at_a_point_of(
            settings,
            Fault(
                at_s=settings.seconds * _CALM + stretch * (number + chance.random()),
                kind=kind,
                slot=chance.randrange(slots),
                for_s=_length_s(kind, chance, settings),
                point=in_turn[number],
                nth=1 if in_turn[number].endswith(_SELDOM) else chance.randint(1, _LONGEST_NTH),
                amount=_amount(kind, chance),
            ),
        )
        for number in range(count)
    ]


def _at_a_point_of(settings: Settings, fault: Fault) -> Fault:
    """The fault, at a crash point that its process passes: one that only relays has no others."""
    if fault.kind.target is not Target.CONSUMER or settings.roles[fault.slot] is not Role.RELAYS:
        return fault
    return replace(fault, point=f"{fault.point.partition('_')[0]}_publish")


def _turns(chance: random.Random, points: Sequence[str], count: int) -> list[str]:
    turns: list[str] = []
    while points and len(turns) < count:
        turns += chance.sample(points, len(points))
    return turns or [""] * count


def _length_s(kind: FaultKind, chance: random.Random, settings: Settings) -> float:
    match kind:
        case FaultKind.PAUSE | FaultKind.PAUSE_AT_POINT | FaultKind.STALL_STORE:
            return settings.lease_s * chance.uniform(1.2, 2.2)
        case FaultKind.STALL_BROKER | FaultKind.DELAY_STORE | FaultKind.DELAY_BROKER:
            return chance.uniform(1.0, 8.0)
        case FaultKind.LATE_STORE_QUESTION:
            return chance.choice((0.3, 1.0, 3.0))
        case FaultKind.LOSE_STORE_ANSWER | FaultKind.LOSE_STORE_QUESTION | FaultKind.LOSE_BROKER_ANSWER:
            # Sometimes the server then refuses connections for as long.
            return chance.choice((0.0, 0.0, 0.5, 2.0))
        case FaultKind.RESTART_STORE | FaultKind.RESTART_BROKER:
            return chance.choice((0.0, 0.5, 2.0))
        case FaultKind.FULL_RETRIES:
            # The messages that fail are sent twice: lost ones show only if both arrive in this time.
            return chance.uniform(6.0, 12.0)
        case _ if kind in HARMS:
            return chance.uniform(2.0, 5.0)
        case _:
            return 0.0


def _amount(kind: FaultKind, chance: random.Random) -> float:
    match kind:
        case FaultKind.SHIFT_CLOCK:
            return chance.choice(_WRONG_CLOCKS_S)
        case FaultKind.DELAY_STORE | FaultKind.DELAY_BROKER:
            return chance.choice(_DELAYS_S)
        case FaultKind.FORGET:
            return 1.0
        case FaultKind.EVICT:
            return chance.uniform(0.1, 0.6)
        case _:
            return 0.0
