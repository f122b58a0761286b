"""How a key and its failures are stored in Redis: the one description; `layout.lua` follows it.

One string a key, named `<prefix>{<bucket>}:<hash in hex>`. Numbers are big-endian, times are microseconds since the
epoch by the server's clock. Lua's numbers are doubles, exact to 2**53: microseconds until the year 2255.

======  =====  ===========  ==============================================================
offset  bytes  field        meaning
======  =====  ===========  ==============================================================
0       1      version      1
1       8      fence
9       8      lease_until  0: none (done, dead, or a claim that does not lapse)
17      8      update_at
25      8      expires_at   set at the claim, never after; the TTL follows from it
33      1      status       `KeyStatus`
34      1      flags        `Flag`
35      16     owner
51      2      text length
53      2      fingerprint length
55             text         UTF-8
..             fingerprint  if `Flag.FINGERPRINT`
..             result       if `Flag.RESULT`, to the end
======  =====  ===========  ==============================================================

A claim sends everything from `status` on; the script puts the fields before it in front.

Failures are beside it under `<name>:f`, so in the same slot: attempts (4 bytes), the token of the release that counted
the last one (8), whether that made the key DEAD (1), the error as UTF-8.

The bucket is a hash tag: keys of one bucket share a slot of a cluster, so one script can take them together. There are
few of them, that a batch makes few calls, and enough to spread evenly over some 20 nodes.
"""

from __future__ import annotations

from binascii import hexlify
from dataclasses import dataclass
from enum import IntFlag
from struct import Struct
from typing import Final

from idempotent.claims import Claim, ClaimRequest, Failure, KeyStatus, Lapsed
from idempotent.errors import StoreError
from idempotent.keys import HASH_BYTES

VERSION: Final = 1
BUCKETS: Final = 64
_BUCKET_SHIFT: Final = 2  # the first 6 bits of the hash
_HEAD: Final = Struct(">BQQQQBB16sHH")
_BODY: Final = Struct(">BB16sHH")
_RELEASE: Final = Struct(">16sBI8s")
_FAILURE: Final = Struct(">I8sB")
_MAX_ATTEMPTS: Final = 2**32 - 1
# Enough of a value for everything but the result: head, 255 characters of 4 bytes, fingerprint.
HEAD_BYTES: Final = 2048


class Flag(IntFlag):
    """The flags byte."""

    FINGERPRINT = 1
    RESULT = 2
    LAPSED = 4
    """The claim took over a lapsed one. Kept, so that a claim whose answer was lost learns it when it asks again."""
    ALONE = 8
    """The lapsed one had been made alone, and its lapse is not counted yet."""
    LEAVE = 16
    """Of a request: `Lapsed.LEAVE`. Means nothing once stored."""
    PARK = 32
    """Of a request: `Lapsed.PARK`. Means nothing once stored."""


_ON_LAPSED: Final = {
    Lapsed.TAKE_OVER: 0,
    Lapsed.LEAVE: int(Flag.LEAVE),
    Lapsed.PARK: int(Flag.PARK),
}
_FATAL: Final = 1
_KEEP_CLAIM: Final = 2


class KeyNames:
    """The names of keys under one prefix.

    Args:
        prefix: what all names start with.
    """

    __slots__ = ("_heads", "prefix")

    def __init__(self, prefix: str) -> None:
        """Make the part before the hash once for each bucket."""
        self.prefix: Final = prefix.encode()
        self._heads = [b"%b{%02x}:" % (self.prefix, bucket) for bucket in range(BUCKETS)]

    def name(self, key_hash: bytes) -> bytes:
        """The name of the key with this hash."""
        return self._heads[key_hash[0] >> _BUCKET_SHIFT] + hexlify(key_hash)

    def hash_of(self, name: bytes) -> bytes | None:
        """The hash in a key's name; None when it is the name of something else."""
        try:
            key_hash = bytes.fromhex(name[-2 * HASH_BYTES :].decode())
        except ValueError:
            return None
        return key_hash if len(key_hash) == HASH_BYTES and self.name(key_hash) == name else None


def bucket_of(name: bytes, prefix_bytes: int) -> bytes:
    """The bucket in a key's name: what a cluster's slot is computed from."""
    return name[prefix_bytes + 1 : prefix_bytes + 3]


def claim_body(request: ClaimRequest) -> bytes:
    """What `claim.lua` takes for one request."""
    text = request.key.text.encode()
    flags = _ON_LAPSED[request.on_lapsed]
    fingerprint = request.fingerprint
    if fingerprint is None:
        return _BODY.pack(request.status, flags, request.owner, len(text), 0) + text
    flags |= Flag.FINGERPRINT.value
    return _BODY.pack(request.status, flags, request.owner, len(text), len(fingerprint)) + text + fingerprint


def release_body(claim: Claim, failure: Failure | None, token: bytes) -> bytes:
    """What `release.lua` takes for one claim; `token` (8 bytes) tells this call from every other."""
    if failure is None:
        return claim.owner
    flags = _FATAL * failure.fatal | _KEEP_CLAIM * failure.keep_claim
    limit = max(0, min(failure.max_attempts, _MAX_ATTEMPTS))
    return _RELEASE.pack(claim.owner, flags, limit, token) + failure.error.encode()


@dataclass(frozen=True, slots=True)
class StoredKey:
    """A stored key, without its owner. Times in microseconds."""

    status: KeyStatus
    fence: int
    lease_until_us: int | None
    update_at_us: int
    expires_at_us: int
    text: str
    result: bytes | None


def stored_key(value: bytes) -> StoredKey:
    """Read a stored key.

    Raises:
        StoreError: it is not one, or of another version of this library.
    """
    if len(value) < _HEAD.size or value[0] != VERSION:
        raise StoreError("a key of the store has a layout that this version cannot read")
    _, fence, lease_until, update_at, expires_at, status, flags, _, text_bytes, fingerprint_bytes = (
        _HEAD.unpack_from(value)
    )
    result_from = _HEAD.size + text_bytes + fingerprint_bytes
    return StoredKey(
        status=KeyStatus(status),
        fence=fence,
        lease_until_us=lease_until or None,
        update_at_us=update_at,
        expires_at_us=expires_at,
        text=value[_HEAD.size : _HEAD.size + text_bytes].decode("utf-8", "replace"),
        result=value[result_from:] if flags & Flag.RESULT else None,
    )


def stored_failure(value: bytes | None) -> tuple[int, str | None]:
    """Attempts and the last error."""
    if not value:
        return 0, None
    attempts, _, _ = _FAILURE.unpack_from(value)
    return attempts, value[_FAILURE.size :].decode("utf-8", "replace")
