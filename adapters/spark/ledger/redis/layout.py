"""How runs and claims are stored in Redis: the description that the scripts follow.

============================  ======================================================================================
`<prefix>newest:<hash>`       token of the newest generation of a run, in digits
`<prefix>run:<token>`         a hash: state, generation, epoch, fingerprint, output_ref, lease, began (microseconds),
                              owned (the number of OWNED claims with the mark of this epoch), prepared (the epoch that
                              was PREPARED, 0 before), manifest, memory (the server and its evictions, see
                              RedisRunStore), pointer (the name above)
`<prefix>claim:<key hash>`    a string, of 20 bytes after the colon; see below
============================  ======================================================================================

A claim, numbers big-endian:

======  =====  ===========  =========================================================
offset  bytes  field        meaning
======  =====  ===========  =========================================================
0       8      token        of the owning run
8       1      state        `ClaimState`
9       4      epoch        of the run; the mark of an OWNED claim, which ends with:
13      2      frame
15      0, 8   fingerprint  of the payload
13      16     attempt      PENDING and DONE have these instead
29      8      lease_until  microseconds
37             result       DONE: nothing, or '=' and the result
======  =====  ===========  =========================================================

Claims expire a retention after they were made or changed, ended runs a little later. Other runs do not expire.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

from idempotent.adapters.spark.ledger.claims import ClaimState, Holder, Owner, Owners, PendingRow
from idempotent.keys import KeySpace

_HEAD: Final = Struct(">QB")
_OWNED: Final = Struct(">QBIH")
_PENDING: Final = Struct(">QBI16s")
_ROW: Final = Struct(">QBI16sQ")
_ATTEMPT_AND_LEASE: Final = Struct(">16sQ")


class Names:
    """The names under one prefix.

    Args:
        prefix: the start of all names.
    """

    def __init__(self, prefix: str) -> None:
        """Encode the prefix once."""
        self.runs: Final = f"{prefix}run:".encode()
        self.claims: Final = f"{prefix}claim:".encode()
        self._newest = f"{prefix}newest:"

    def newest(self, consumer: str, run_id: str) -> bytes:
        """The name of the pointer to the newest generation."""
        return (self._newest + KeySpace(consumer, "run").key(run_id).token).encode()

    def run(self, token: int) -> bytes:
        """The name of a run."""
        return self.runs + str(token).encode()

    def claim(self, key_hash: bytes) -> bytes:
        """The name of a claim."""
        return self.claims + key_hash


def token_and_mark(owner: Owner) -> tuple[bytes, bytes]:
    """An owner's token and mark, each as it is stored in claims."""
    return owner.token.to_bytes(8), owner.mark.to_bytes(4)


def owned_value(owner: Owner) -> bytes:
    """An OWNED claim without its fingerprint."""
    return _OWNED.pack(owner.token, ClaimState.OWNED, owner.mark, owner.frame)


def pending_head(holder: Holder) -> bytes:
    """A PENDING claim without its lease."""
    return _PENDING.pack(holder.token, ClaimState.PENDING, holder.epoch, holder.attempt)


def attempt_and_lease(row: PendingRow) -> bytes:
    """Attempt and lease of a claim, as it was read."""
    return _ATTEMPT_AND_LEASE.pack(row.attempt, row.lease_until_us)


def head_of(value: bytes) -> tuple[int, ClaimState]:
    """Token and state of a claim in any state."""
    token, state = _HEAD.unpack_from(value)
    return token, ClaimState(state)


def owner_of(value: bytes) -> Owner:
    """The owner of a claim in any state."""
    token, state, mark, frame = _OWNED.unpack_from(value)
    if state != ClaimState.OWNED:
        return Owner(token, mark)
    return Owner(token, mark, frame, value[_OWNED.size :] or None)


def owners(
    owner: Owner, count: int, fingerprints: Sequence[bytes | None] | None, answer: int | Sequence[Any]
) -> Owners:
    """The owners in an answer of `claim.lua`.

    Args:
        owner: token, mark and frame that the run claims with.
        count: the number of keys.
        fingerprints: that the run gave, aligned; None: no key has one.
        answer: 0, or places and values.
    """
    if isinstance(answer, int):
        if fingerprints is None:
            return Owners((owner,), bytes(count))
        return Owners([Owner(*owner[:3], mark) for mark in fingerprints], range(count))
    places, others = answer[:count], [owner_of(value) for value in answer[count:]]
    if fingerprints is None:
        # A key without an owner has the place -1, the last.
        return Owners((owner, *others, None), places)
    distinct = (None, *others, None)
    return Owners(
        [
            distinct[at] if at else Owner(*owner[:3], mark)
            for at, mark in zip(places, fingerprints, strict=True)
        ],
        range(count),
    )


def pending_row(key_hash: bytes, value: bytes, now_us: int) -> PendingRow:
    """A stored claim as RunLedger reads it."""
    token, state = head_of(value)
    if state is ClaimState.OWNED:
        return PendingRow(key_hash, state, token, 0, b"", 0, None, now_us)
    _, _, epoch, attempt, lease_until = _ROW.unpack_from(value)
    body = value[_ROW.size :]
    return PendingRow(key_hash, state, token, epoch, attempt, lease_until, body[1:] if body else None, now_us)
