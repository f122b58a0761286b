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
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from struct import Struct
from typing import Final

from idempotent.claims import Claim, ClaimRequest, Failure, KeyStatus, Lapsed
from idempotent.errors import StoreError

VERSION: Final = 1
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


_ON_LAPSED: Final = {Lapsed.TAKE_OVER: 0, Lapsed.LEAVE: int(Flag.LEAVE), Lapsed.PARK: int(Flag.PARK)}
_FATAL: Final = 1
_KEEP_CLAIM: Final = 2


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
