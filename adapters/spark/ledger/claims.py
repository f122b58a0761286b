"""Claims as the ledger hands them out: who owns a key, and how far a handler is with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, NamedTuple, Self, TypeVar

T = TypeVar("T")

HASH_BYTES: Final = 20
"""Length of a claim's key hash; how it is made is the caller's affair, as long as it covers the consumer."""
ATTEMPT_BYTES: Final = 16
"""Length of the token of one attempt of a task."""
FINGERPRINT_BYTES: Final = 8
"""Length of the fingerprint of a payload."""


class ClaimState(IntEnum):
    """What a stored claim says. The numbers are stored."""

    OWNED = 0
    """The run owns the key (mode dedup)."""
    PENDING = 1
    """A handler runs for the key (modes replay and effect)."""
    DONE = 2
    """A handler has finished, whatever becomes of its run."""


class Owner(NamedTuple):
    """Who owns a key, as `Ledger.claim` found it. A tuple, because there is one for each row.

    Attributes:
        token: of the owning run.
        fingerprint: of the payload that was claimed; None: none was given then.
    """

    token: int
    fingerprint: bytes | None


class Owners(NamedTuple):
    """Who owns the keys of one round trip. They are many, and their owners mostly one.

    Attributes:
        distinct: the owners; None: nobody.
        places: for each key the place of its owner in `distinct`.
    """

    distinct: Sequence[Owner | None]
    places: Sequence[int]

    @classmethod
    def of(cls, hashes: Iterable[bytes], found: Mapping[bytes, Owner]) -> Self:
        """Those of the keys, as found."""
        places: dict[Owner | None, int] = {}
        of_keys = [places.setdefault(found.get(key_hash), len(places)) for key_hash in hashes]
        return cls(list(places), of_keys)

    def spread(self, answers: Sequence[T]) -> list[T]:
        """An answer for each owner becomes one for each key."""
        if len(answers) == 1:
            return [answers[0]] * len(self.places)
        return list(map(answers.__getitem__, self.places))


class Hold(Enum):
    """What `Ledger.acquire` says about a key."""

    MINE = "mine"
    """Pending, and this attempt's: run the handler, then `finish`."""
    DONE = "done"
    """A handler has finished; here is its result."""
    HELD = "held"
    """Another attempt's handler may be running: wait, then ask again."""


@dataclass(frozen=True, slots=True)
class Held:
    """The answer for one key.

    Attributes:
        hold: whose it is.
        token: of the owning run.
        attempt: who holds or finished it.
        result: what its handler returned, if it was stored. Only with DONE.
        lease_rest_s: seconds until the holder's lease ends by the store's clock. Only with HELD.
    """

    hold: Hold
    token: int
    attempt: bytes
    result: bytes | None = None
    lease_rest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PendingRow:
    """A stored claim of the modes replay and effect, as the ledger's own parts see it.

    Attributes:
        key_hash: of the key.
        state: OWNED if another mode has the key.
        token: of the owning run.
        epoch: of that run when it was claimed.
        attempt: who claimed it.
        lease_until_us: end of the lease, microseconds since 1970 by the store's clock.
        result: of the handler, if it is done.
        now_us: the store's clock at the reading.
    """

    key_hash: bytes
    state: ClaimState
    token: int
    epoch: int
    attempt: bytes
    lease_until_us: int
    result: bytes | None
    now_us: int
