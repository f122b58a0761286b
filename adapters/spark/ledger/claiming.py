"""KeyClaiming: which run owns a key (mode dedup)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from idempotent.adapters.spark.ledger.claims import FINGERPRINT_BYTES, HASH_BYTES, Owner, Owners
from idempotent.adapters.spark.ledger.lifecycle import RunLifecycle
from idempotent.adapters.spark.ledger.runs import RunRef

MAX_ROWS: Final = 1000
"""Keys in one round trip; longer calls make more."""
_HASH_LENGTHS: Final = frozenset({HASH_BYTES})
T = TypeVar("T")


class KeyClaiming(RunLifecycle):
    """Claims of keys. They count as much as their run: see RunState."""

    def claim(
        self,
        ref: RunRef,
        hashes: Sequence[bytes],
        *,
        insert: bool = True,
        fingerprints: Sequence[bytes | None] | None = None,
    ) -> list[Owner | None]:
        """Who owns these keys, after inserting the claims of those that nobody has.

        The store inserts only while the run is OPEN, checked in the same atomic step. May be repeated at will.
        One round trip for 1,000 keys (PostgreSQL, SQLite: a second one if some were not new; MySQL: two).

        Args:
            ref: the run that claims.
            hashes: of the keys, 20 bytes each, in any order, none twice.
            insert: False only reads.
            fingerprints: of the payloads, 8 bytes each or None, aligned with the hashes; stored with what is inserted.

        Returns:
            The owners, aligned with the hashes. None: nobody, because `insert` is False or the run is not OPEN.
        """
        parts = self.owners(ref, hashes, insert=insert, fingerprints=fingerprints)
        return [owner for part in parts for owner in part.spread(part.distinct)]

    def owners(
        self,
        ref: RunRef,
        hashes: Sequence[bytes],
        *,
        insert: bool = True,
        fingerprints: Sequence[bytes | None] | None = None,
    ) -> Iterator[Owners]:
        """`claim`, with an answer for each round trip, which does not grow with its keys when all have one owner."""
        check(hashes, fingerprints)
        for start in range(0, len(hashes), MAX_ROWS):
            part = hashes[start : start + MAX_ROWS]
            if not insert:
                yield self._read_owned(part)
            else:
                marks = None if fingerprints is None else fingerprints[start : start + MAX_ROWS]
                yield self._insert_owned(ref.token, part, marks)

    def steal(
        self,
        ref: RunRef,
        from_token: int,
        hashes: Sequence[bytes],
        *,
        fingerprints: Sequence[bytes | None] | None = None,
    ) -> set[bytes]:
        """Take keys over from an ABORTED run, which the caller has seen to be so: that is for good.

        Each key by a CAS on its owner, and only while `ref` is OPEN. May be repeated at will.

        Args:
            ref: the run that takes them.
            from_token: the owner as the caller saw it.
            hashes: of the keys, none twice.
            fingerprints: as in `claim`; they replace what is stored.

        Returns:
            Those that `ref` owns now. For the others, look again.
        """
        prints = fingerprints or [None] * len(hashes)
        stolen: set[bytes] = set()
        for part in in_parts(checked(hashes, prints)):
            stolen |= self._steal(ref.token, from_token, part)
        return stolen

    @abstractmethod
    def _insert_owned(
        self, token: int, hashes: Sequence[bytes], fingerprints: Sequence[bytes | None] | None
    ) -> Owners:
        """Insert claims of the keys that nobody has, iff the run is OPEN, in one atomic step. Owners of all, aligned.

        Args:
            token: of the run that claims.
            hashes: of the keys, at most 1,000, in any order.
            fingerprints: aligned; None: there are none.
        """

    @abstractmethod
    def _read_owned(self, hashes: Sequence[bytes]) -> Owners:
        """The owners of the keys, aligned."""

    @abstractmethod
    def _steal(self, token: int, from_token: int, keys: Sequence[tuple[bytes, bytes | None]]) -> set[bytes]:
        """Change the owner of those keys that `from_token` owns, iff the run `token` is OPEN; all that are its own."""


def checked(
    hashes: Sequence[bytes], fingerprints: Sequence[bytes | None]
) -> list[tuple[bytes, bytes | None]]:
    """(hash, fingerprint) pairs, sorted, so that two batches lock their common keys in one order. Raises as `check`."""
    check(hashes, fingerprints)
    return sorted(zip(hashes, fingerprints, strict=True), key=_first)


def check(hashes: Sequence[bytes], fingerprints: Sequence[bytes | None] | None) -> None:
    """Refuse what cannot be claimed.

    Raises:
        ValueError: a wrong length, or a hash twice.
    """
    # Without a loop in Python: this is done for every key there is.
    if not _HASH_LENGTHS.issuperset(map(len, hashes)):
        raise ValueError(f"a key hash has {HASH_BYTES} bytes")
    if len(set(hashes)) != len(hashes):
        raise ValueError("a key is there twice: keep one row of each key first")
    if fingerprints is None:
        return
    if len(fingerprints) != len(hashes):
        raise ValueError("a fingerprint, or None, for each key")
    if any(mark is not None and len(mark) != FINGERPRINT_BYTES for mark in fingerprints):
        raise ValueError(f"a fingerprint has {FINGERPRINT_BYTES} bytes")


def in_parts(items: Sequence[T]) -> list[Sequence[T]]:
    """The items in slices that one statement takes."""
    return [items[start : start + MAX_ROWS] for start in range(0, len(items), MAX_ROWS)]


def _first(pair: tuple[bytes, bytes | None]) -> bytes:
    return pair[0]
