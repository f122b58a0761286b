"""schedule: which fault happens when; a pure function of the settings and of the feasible faults."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import Final

from idempotent.torture.faults.kinds import Fault, FaultKind, Target
from idempotent.torture.settings import Settings

# No faults in the first and the last part: consumers start, and the effects of the faults show.
_CALM: Final = 0.05
_LONGEST_NTH: Final = 15
_SELDOM: Final = ("release", "renew")
_WRONG_CLOCKS_S: Final = (-86_400.0, -3_600.0, -30.0, 45.0, 7_200.0, 86_400.0)
_DELAYS_S: Final = (0.02, 0.1, 0.3)


def schedule(settings: Settings, kinds: Collection[FaultKind], points: Sequence[str]) -> tuple[Fault, ...]:
    """All faults of a run, in the order of their time.

    A kind that cannot happen changes nothing about the others.

    Args:
        settings: with the seed.
        kinds: the faults that can happen.
        points: the crash points that consumers pass. Each has its turn before one comes again.
    """
    faults = [fault for kind in kinds for fault in _of_kind(kind, settings, points)]
    return tuple(sorted(faults, key=lambda fault: (fault.at_s, fault.kind.value)))


def _of_kind(kind: FaultKind, settings: Settings, points: Sequence[str]) -> list[Fault]:
    chance = random.Random(f"{kind.value} {settings.seed}")
    count = max(round(settings.seconds / kind.every_s), 1)
    stretch = settings.seconds * (1 - 2 * _CALM) / count
    slots = settings.processes + (kind.target is Target.BROKER_CONNECTION)
    in_turn = _turns(chance, points, count)
    return [
        Fault(
            at_s=settings.seconds * _CALM + stretch * (number + chance.random()),
            kind=kind,
            slot=chance.randrange(slots),
            for_s=_length_s(kind, chance, settings),
            point=in_turn[number],
            nth=1 if in_turn[number].endswith(_SELDOM) else chance.randint(1, _LONGEST_NTH),
            amount=_amount(kind, chance),
        )
        for number in range(count)
    ]


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
        case FaultKind.FILL_DISK:
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
