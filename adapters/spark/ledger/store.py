"""RunStore: what a store of runs and claims does in one atomic step each. `RunLedger` has the rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from idempotent.adapters.spark.ledger.claims import Holder, Owner, PendingRow
from idempotent.adapters.spark.ledger.runs import (
    Collected,
    Retention,
    RunChange,
    RunRef,
    RunRow,
    RunState,
)


class RunStore(ABC):
    """The rows of runs and of claims. Safe for threads; survives a fork.

    A call is given at most `MAX_ROWS` keys, all different. Every method raises StoreError when the store failed or did
    not answer.

    Args:
        where: the store, without its password, for error messages.
        retention_s: seconds that a claim is kept.
    """

    def __init__(self, where: str, *, retention_s: float) -> None:
        self.where: Final = where
        self.retention: Final = Retention(retention_s)

    # Runs

    @abstractmethod
    def newest(self, consumer: str, run_id: str, run_hash: bytes | None = None) -> RunRow | None:
        """The row of the greatest generation of a run, with these names: found by them, or by the hash of its key."""

    @abstractmethod
    def find(self, ref: RunRef) -> RunRow | None:
        """The row with this token."""

    @abstractmethod
    def rows(self, tokens: Collection[int]) -> Mapping[int, RunRow]:
        """The runs of these tokens that the store knows, without manifests, with names as far as keys tell."""

    @abstractmethod
    def insert_run(self, ref: RunRef, newest: int | None, fingerprint: bytes | None, lease_us: int) -> None:
        """Add an OPEN row of epoch 1 with this token and this driver, iff its generation does not exist.

        Args:
            ref: the row's identity.
            newest: token of the newest generation so far; None if the run is new.
            fingerprint: of the input.
            lease_us: the lease ends this many microseconds from now.
        """

    @abstractmethod
    def change_run(self, token: int, change: RunChange) -> bool:
        """Make a change iff its conditions hold; whether it was made.

        After a change of state or epoch no claim is made on the condition that was true before. A change to COMMITTED
        or ABORTED stores its time.
        """

    def lost(self, token: int) -> str | None:
        """Why the store may have lost claims of this run; None if it knows of no loss."""
        del token
        return None

    # Mode dedup

    @abstractmethod
    def insert_owned(
        self, owner: Owner, hashes: Sequence[bytes], fingerprints: Sequence[bytes | None] | None
    ) -> list[Owner | None]:
        """Insert claims of keys without an owner, iff the run is OPEN and its epoch the mark.

        Returns the owners of all, aligned.

        Args:
            owner: token, mark and frame of the new claims.
            hashes: of the keys, in any order.
            fingerprints: aligned; None: no key has one.
        """

    @abstractmethod
    def read_owned(self, hashes: Sequence[bytes]) -> list[Owner | None]:
        """The owners of the keys, aligned."""

    @abstractmethod
    def steal(self, owner: Owner, seen: Owner, keys: Sequence[tuple[bytes, bytes | None]]) -> set[bytes]:
        """Make `owner` the owner of keys with the token and mark of `seen`, iff its run is OPEN and its epoch the mark.

        Returns all keys that `owner`, of the same token, mark and frame, has then.
        """

    @abstractmethod
    def count_owned(self, ref: RunRef) -> int:
        """The number of OWNED claims that have the mark of this attempt."""

    # Modes replay and effect

    @abstractmethod
    def insert_pending(self, holder: Holder, hashes: Sequence[bytes]) -> dict[bytes, PendingRow]:
        """Insert pending claims of keys without a claim, iff the run is OPEN at the epoch. The rows of all."""

    @abstractmethod
    def take_over(self, holder: Holder, seen: Sequence[PendingRow]) -> set[bytes]:
        """Make pending claims the holder's, iff they are as seen, and the run is OPEN at the epoch; all that it has."""

    @abstractmethod
    def finish(self, holder: Holder, results: Sequence[tuple[bytes, bytes | None]]) -> set[bytes]:
        """Make claims of the holder DONE, with their results; the hashes that it held."""

    @abstractmethod
    def renew_pending(self, holder: Holder, hashes: Sequence[bytes]) -> set[bytes]:
        """Renew pending claims of the holder; the hashes that it holds."""

    @abstractmethod
    def give_up(self, holder: Holder, hashes: Sequence[bytes]) -> None:
        """Delete claims of the holder that are as it makes them."""

    # Upkeep

    def abandoned(self) -> Sequence[int]:
        """Tokens of OPEN runs that began a retention ago and whose lease has ended; a batch of them."""
        return ()

    @abstractmethod
    def listed(self, states: Collection[RunState], consumer: str | None = None) -> Iterator[RunRow]:
        """All generations of runs in these states, in no order, without manifests, with names as far as keys tell."""

    def collect(self, limit: int) -> Collected:
        """Delete what `RunLedger.collect` lists: `limit` claims at most, a batch of runs; nothing where rows expire."""
        del limit
        return Collected()

    @abstractmethod
    def close(self) -> None:
        """Close connections. The next call opens new ones."""
