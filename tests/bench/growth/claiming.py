"""Claim and complete fresh keys, and look at the clock."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.claims import ClaimRequest, Completion, KeyStatus, Lapsed, new_owner
from idempotent.keys import KeySpace

_KEYS: Final = KeySpace("growth", "fresh")
_numbers: Final = itertools.count()
# Connections, statements and caches.
_WARM: Final = 10


def fresh(checker: AbstractIdempotentChecker, batch: int, goes_on: Callable[[], bool]) -> Iterator[float]:
    """Seconds of each claim and completion, for as long as it goes on."""
    while goes_on():
        requests = _requests(batch)
        began = time.perf_counter()
        decisions = (
            [checker.protocol.claim(requests[0])] if batch == 1 else checker.protocol.claim_many(requests)
        )
        checker.protocol.complete_many(
            [Completion(decision.claim) for decision in decisions if decision.claim]
        )
        yield time.perf_counter() - began


def for_seconds(checker: AbstractIdempotentChecker, batch: int, seconds: float) -> list[float]:
    """Seconds of each claim and completion within so much time, without those that warm it up."""
    warming = itertools.repeat(True, _WARM)
    for _ in fresh(checker, batch, lambda: next(warming, False)):
        pass
    until = time.perf_counter() + seconds
    return list(fresh(checker, batch, lambda: time.perf_counter() < until))


def rate(times_s: Sequence[float], batch: int) -> float:
    """Keys a second."""
    return round(len(times_s) * batch / sum(times_s), 1)


def _requests(batch: int) -> list[ClaimRequest]:
    owner = new_owner()
    keys = [_KEYS.key(f"order-{next(_numbers)}") for _ in range(batch)]
    if batch == 1:
        return [ClaimRequest(keys[0], owner)]
    return [ClaimRequest(key, owner, None, KeyStatus.IN_PROGRESS, Lapsed.LEAVE) for key in keys]
