"""KeyClaiming: which run owns a key (mode dedup)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final, TypeVar

from idempotent.adapters.spark.ledger.beginning import RunBeginning
from idempotent.adapters.spark.ledger.claims import FINGERPRINT_BYTES, HASH_BYTES, Owner, Owners
from idempotent.adapters.spark.ledger.runs import RunRef

MAX_ROWS: Final = 1000
"""The most keys in one round trip; a longer call makes several."""
_HASH_LENGTHS: Final = frozenset({HASH_BYTES})
T = TypeVar("T")


class KeyClaiming(RunBeginning):
    """Claims of keys. Whether a claim counts depends on its run: see RunState."""

    def claim(
        self,
        ref: RunRef,
        hashes: Sequence[bytes],
        *,
        insert: bool = True,
        frame: int = 0,
        fingerprints: Sequence[bytes | None] | None = None,
    ) -> list[Owner | None]:
        """Claim the keys that have no owner, and return the owners of all.

        The store inserts only while the run is OPEN and this attempt the newest, checked in the same atomic step.
        May be repeated. One round trip for 1,000 keys (PostgreSQL, SQLite: a second one if some were not new; MySQL:
        two).

        Args:
            ref: the claiming run.
            hashes: of the keys, 20 bytes each, in any order, all different.
            insert: False reads the owners and claims no key.
            frame: the number of the frame whose rows have the keys.
            fingerprints: of the payloads, 8 bytes each or None, aligned with the hashes; stored with new claims.

        Returns:
            The owners, aligned with the hashes. None: no owner, because `insert` is False, the run is not OPEN or this
            attempt not the newest.
        """
        parts = self.owners(ref, hashes, insert=insert, frame=frame, fingerprints=fingerprints)
        return [owner for part in parts for owner in part.spread(part.distinct)]

    def owners(
        self,
        ref: RunRef,
        hashes: Sequence[bytes],
        *,
        insert: bool = True,
        frame: int = 0,
        fingerprints: Sequence[bytes | None] | None = None,
    ) -> Iterator[Owners]:
        """`claim`, with one answer for each round trip: small, however many keys it has, when one run owns them all."""
        check(hashes, fingerprints)
        for start in range(0, len(hashes), MAX_ROWS):
            part = hashes[start : start + MAX_ROWS]
            if not insert:
                yield self._read_owned(part)
            else:
                marks = None if fingerprints is None else fingerprints[start : start + MAX_ROWS]
                yield self._insert_owned(Owner(ref.token, ref.epoch, frame), part, marks)

    def steal(
        self,
        ref: RunRef,
        seen: Owner,
        hashes: Sequence[bytes],
        *,
        frame: int = 0,
        fingerprints: Sequence[bytes | None] | None = None,
    ) -> set[bytes]:
        """Take keys over whose claims can never count.

        They are of an ABORTED run, of an attempt that was not the PREPARED one, or of this run's earlier attempts.

        Each key changes by a compare-and-set on its owner's token and mark, and only while `ref` is OPEN and its
        attempt the newest. May be repeated.

        Args:
            ref: the run that takes the keys.
            seen: the owner, as the caller has seen it.
            hashes: of the keys, all different.
            frame: as in `claim`.
            fingerprints: as in `claim`; they replace the stored ones.

        Returns:
            The hashes that this attempt and frame own now; ask for the owners of the others again.
        """
        prints = fingerprints or [None] * len(hashes)
        stolen: set[bytes] = set()
        for part in in_parts(checked(hashes, prints)):
            stolen |= self._steal(Owner(ref.token, ref.epoch, frame), seen, part)
        return stolen

    @abstractmethod
    def _insert_owned(
        self, owner: Owner, hashes: Sequence[bytes], fingerprints: Sequence[bytes | None] | None
    ) -> Owners:
        """Insert claims of keys without an owner, iff the run is OPEN and its epoch the mark, in one atomic step.

        Returns the owners of all, aligned.

        Args:
            owner: token, mark and frame of the new claims.
            hashes: of the keys, at most 1,000, in any order.
            fingerprints: aligned; None: no key has one.
        """

    @abstractmethod
    def _read_owned(self, hashes: Sequence[bytes]) -> Owners:
        """The owners of the keys, aligned."""

    @abstractmethod
    def _steal(self, owner: Owner, seen: Owner, keys: Sequence[tuple[bytes, bytes | None]]) -> set[bytes]:
        """Make `owner` the owner of keys with the token and mark of `seen`, iff its run is OPEN and its epoch the mark.

        Returns all keys that `owner`, of the same token, mark and frame, has then.
        """


def checked(
    hashes: Sequence[bytes], fingerprints: Sequence[bytes | None]
) -> list[tuple[bytes, bytes | None]]:
    """(hash, fingerprint) pairs, sorted: two batches lock their common keys in the same order. Raises as `check`."""
    check(hashes, fingerprints)
    return sorted(zip(hashes, fingerprints, strict=True), key=itemgetter(0))


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
