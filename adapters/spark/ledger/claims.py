"""Claims: the owner of a key, and how far its handler is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, NamedTuple, Self, TypeVar

T = TypeVar("T")

HASH_BYTES: Final = 20
"""Length of a claim's key hash. The caller computes it, and must include the consumer."""
ATTEMPT_BYTES: Final = 16
"""Length of the random token of one attempt of a task."""
FINGERPRINT_BYTES: Final = 8
"""Length of the fingerprint of a payload."""


class ClaimState(IntEnum):
    """The state of a stored claim. The numbers are stored."""

    OWNED = 0
    """The run owns the key (mode dedup). Its epoch is the claim's mark."""
    PENDING = 1
    """A handler runs for the key (modes replay and effect)."""
    DONE = 2
    """A handler has finished; true even if its run is aborted."""


class Owner(NamedTuple):
    """The owner of a key, as `Ledger.claim` found it. A tuple, because each row may have one.

    Attributes:
        token: of the owning run.
        mark: the epoch of the attempt that claimed the key, or was the last one to meet it again.
        frame: the number of the frame, among those of that attempt, whose row has the key.
        fingerprint: of the payload that the key was claimed with; None if it had none.
    """

    token: int
    mark: int
    frame: int = 0
    fingerprint: bytes | None = None


class Owners(NamedTuple):
    """The owners of the keys of one round trip: many keys, and mostly one owner.

    Attributes:
        distinct: the different owners; None: no owner.
        places: for each key the index of its owner in `distinct`.
    """

    distinct: Sequence[Owner | None]
    places: Sequence[int]

    @classmethod
    def of(cls, hashes: Iterable[bytes], found: Mapping[bytes, Owner]) -> Self:
        """The owners of these keys, as found; a key that was not found has none."""
        places: dict[Owner | None, int] = {}
        of_keys = [places.setdefault(found.get(key_hash), len(places)) for key_hash in hashes]
        return cls(list(places), of_keys)

    def spread(self, answers: Sequence[T]) -> list[T]:
        """The answers for `distinct`, repeated for each key."""
        if len(answers) == 1:
            return [answers[0]] * len(self.places)
        return list(map(answers.__getitem__, self.places))


class Hold(Enum):
    """The answer of `Ledger.acquire` for a key."""

    MINE = "mine"
    """This attempt has the pending claim: run the handler, then `finish`."""
    DONE = "done"
    """A handler has finished; the answer has its result."""
    HELD = "held"
    """Another attempt's handler may be running: wait, then acquire again."""


@dataclass(frozen=True, slots=True)
class Held:
    """The answer of `Ledger.acquire` for one key.

    Attributes:
        hold: whether this attempt has the key.
        token: of the owning run.
        attempt: that holds or finished the key.
        result: what its handler returned, if that was stored. Only with DONE.
        lease_rest_s: seconds until the holder's lease ends by the store's clock. Only with HELD.
    """

    hold: Hold
    token: int
    attempt: bytes
    result: bytes | None = None
    lease_rest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PendingRow:
    """A stored claim of the modes replay and effect, as the store returns it.

    Attributes:
        key_hash: of the key.
        state: OWNED if mode dedup has the key.
        token: of the owning run.
        epoch: of that run at the claim.
        attempt: that claimed the key.
        lease_until_us: end of the lease, microseconds since 1970 by the store's clock.
        result: of the handler, if the claim is DONE.
        now_us: the store's clock when it was read.
    """

    key_hash: bytes
    state: ClaimState
    token: int
    epoch: int
    attempt: bytes
    lease_until_us: int
    result: bytes | None
    now_us: int
