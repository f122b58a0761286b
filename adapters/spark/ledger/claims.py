"""Claims: the owner of a key, and how far its handler is; and which keys and results a store takes at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

from idempotent.adapters.spark.ledger.runs import MICROSECONDS
from idempotent.errors import ConfigurationError

T = TypeVar("T")

HASH_BYTES: Final = 20
"""Length of a claim's key hash. The caller computes it, and must include the consumer."""
ATTEMPT_BYTES: Final = 16
"""Length of the random token of one attempt of a task."""
FINGERPRINT_BYTES: Final = 8
"""Length of the fingerprint of a payload."""
MAX_ROWS: Final = 1000
"""The most keys in one round trip; a longer call makes several."""
_HASH_LENGTHS: Final = frozenset({HASH_BYTES})


class ClaimState(IntEnum):
    """The state of a stored claim. The numbers are stored."""

    OWNED = 0
    """The run owns the key (mode dedup). Its epoch is the claim's mark."""
    PENDING = 1
    """A handler runs for the key (modes replay and effect)."""
    DONE = 2
    """A handler has finished; true even if its run is aborted."""


HANDLED: Final = -1
"""In the place of a frame: a handler's claim, of the modes replay and effect."""


class Owner(NamedTuple):
    """The owner of a key, as `RunLedger.claim` found it. A tuple: many keys have one, and mostly the same.

    Attributes:
        token: of the owning run.
        mark: the epoch of the attempt that claimed the key, or was the last one to meet it again.
        frame: the number of the frame, among those of that attempt, whose row has the key; or HANDLED.
        fingerprint: of the payload that the key was claimed with; None if it had none.
    """

    token: int
    mark: int
    frame: int = 0
    fingerprint: bytes | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """An attempt of a task that acquires keys: its run, the run's epoch, its token, and its lease in microseconds.

    `state` is that of its new claims: DONE in the transaction of the effect, where they count once that commits.
    """

    token: int
    epoch: int
    attempt: bytes
    lease_us: int
    state: ClaimState = ClaimState.PENDING


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

    def is_mine(self, holder: Holder) -> bool:
        """Whether the holder has the claim as it makes them: it runs the handler, and then finishes the key."""
        return (self.state, self.attempt) == (holder.state, holder.attempt)

    def is_held(self, holder: Holder) -> bool:
        """Whether another attempt's handler may be running: wait, then acquire again."""
        return self.state is ClaimState.PENDING and self.attempt != holder.attempt

    @property
    def lease_rest_s(self) -> float:
        """Seconds until the end of the lease when it was read."""
        return (self.lease_until_us - self.now_us) / MICROSECONDS

    def may_pass_to(self, holder: Holder, aborted: Collection[int]) -> bool:
        """Whether the holder may take the claim over, if it is still as in this row.

        Args:
            holder: the attempt that asks.
            aborted: tokens of runs that are ABORTED.
        """
        older = self.token == holder.token and self.epoch < holder.epoch
        lapsed = self.lease_until_us < self.now_us
        return self.is_held(holder) and (older or lapsed or self.token in aborted)

    def passed_to(self, holder: Holder) -> PendingRow:
        """The claim once the holder has taken it over."""
        token, epoch, attempt = holder.token, holder.epoch, holder.attempt
        return replace(self, state=holder.state, token=token, epoch=epoch, attempt=attempt)


def mixed_modes(before: str, now: str) -> ConfigurationError:
    """The error for a key that was claimed in another mode: its claim would not count, or count for too much."""
    return ConfigurationError(
        f"a key is claimed in mode {before} and now in mode {now}: give each mode its own consumer"
    )


def check(hashes: Sequence[bytes], fingerprints: Sequence[bytes | None] | None) -> None:
    """Refuse hashes and fingerprints that cannot be stored.

    Raises:
        ValueError: a wrong length, or two equal hashes.
    """
    # This runs for every key, so without a loop in Python.
    if not _HASH_LENGTHS.issuperset(map(len, hashes)):
        raise ValueError(f"a key hash has {HASH_BYTES} bytes")
    if len(set(hashes)) != len(hashes):
        raise ValueError("a key is there twice: keep one row of each key before claiming")
    if fingerprints is None:
        return
    if len(fingerprints) != len(hashes):
        raise ValueError("as many fingerprints as keys are needed; None for a key without one")
    if any(mark is not None and len(mark) != FINGERPRINT_BYTES for mark in fingerprints):
        raise ValueError(f"a fingerprint has {FINGERPRINT_BYTES} bytes")


def in_parts(items: Sequence[T]) -> list[Sequence[T]]:
    """The items in slices for one statement each."""
    return [items[start : start + MAX_ROWS] for start in range(0, len(items), MAX_ROWS)]
