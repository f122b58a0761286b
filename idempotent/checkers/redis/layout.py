"""How a key and its failures are stored in Redis; `layout.lua` follows this description.

One string for each key, named `<prefix>{<bucket>}:<hash in hex>`. Numbers are big-endian, times are microseconds since
the epoch by the server's clock. Lua's numbers are doubles, exact to 2**53: microseconds until the year 2255.

======  =====  ===========  ==============================================================
offset  bytes  field        meaning
======  =====  ===========  ==============================================================
0       1      version      1
1       8      fence
9       8      lease_until  0: no lease (done, dead, or a claim that never lapses)
17      8      update_at    of a key in progress: when it was first claimed; each take-over adds one to the fence alone
25      8      expires_at   determines the TTL; `NEVER_US`: none, the key waits for a person
33      1      status       `KeyStatus`
34      1      flags        `Flag`
35      16     owner        `NOBODY`: the handler failed, and lease_until is the end of its backoff
51      2      text length
53      2      fingerprint length
55             text         UTF-8
..             fingerprint  if `Flag.FINGERPRINT`
..             result       if `Flag.RESULT`, to the end
======  =====  ===========  ==============================================================

A claim sends `status` and the fields behind it; the script adds the fields before it.

Failures are stored under `<name>:f`, in the same cluster slot: attempts (4 bytes), the token of the release that
counted the last attempt (8), whether that release made the key DEAD (1), the error as UTF-8.
"""

from __future__ import annotations

from enum import IntFlag
from importlib.resources import files
from struct import Struct
from typing import Final

from idempotent.admin import NEVER_US, KeyRecord
from idempotent.checkers.durations import Durations
from idempotent.checkers.judging import stored_deaths
from idempotent.claims import NOBODY, UNKNOWN_EFFECT, Claim, ClaimRequest, Failure, KeyStatus, Lapsed
from idempotent.errors import StoreError
from idempotent.policy import Backoff
from idempotent.stores.redis.scripts import Lua

VERSION: Final = 1
_HEAD: Final = Struct(">BQQQQBB16sHH")
_BODY: Final = Struct(">BB16sHH")
_RELEASE: Final = Struct(">16sBI8sQQd")
_FAILURE: Final = Struct(">I8sB")
_MAX_ATTEMPTS: Final = 2**32 - 1
# At most so many bytes precede the result: head, 255 characters of 4 bytes, fingerprint.
HEAD_BYTES: Final = 2048
_AT_ONCE: Final = Backoff(0.0, 0.0)
_FATAL: Final = 1


class Flag(IntFlag):
    """The flags byte."""

    FINGERPRINT = 1
    RESULT = 2
    LEAVE = 16
    """Only in a request: `Lapsed.LEAVE`."""
    PARK = 32
    """Only in a request: `Lapsed.PARK`."""


_ON_LAPSED: Final = {
    Lapsed.TAKE_OVER: 0,
    Lapsed.ASK: 0,
    Lapsed.LEAVE: int(Flag.LEAVE),
    Lapsed.PARK: int(Flag.PARK),
}


def claim_body(request: ClaimRequest) -> bytes:
    """The argument of `claim.lua` for one request."""
    text = request.key.text.encode()
    flags = _ON_LAPSED[request.on_lapsed]
    fingerprint = request.fingerprint
    if fingerprint is None:
        return _BODY.pack(request.status, flags, request.owner, len(text), 0) + text
    flags |= Flag.FINGERPRINT.value
    return _BODY.pack(request.status, flags, request.owner, len(text), len(fingerprint)) + text + fingerprint


def release_body(claim: Claim, failure: Failure | None, token: bytes) -> bytes:
    """The argument of `release.lua` for one claim; `token` (8 bytes) identifies the call."""
    if failure is None:
        return claim.owner
    flags = _FATAL * failure.fatal
    limit = max(0, min(failure.max_attempts, _MAX_ATTEMPTS))
    backoff = failure.backoff or _AT_ONCE
    first_us, most_us = (int(s * failure.share * 1_000_000) for s in (backoff.initial_s, backoff.maximum_s))
    head = _RELEASE.pack(claim.owner, flags, limit, token, first_us, most_us, backoff.multiplier)
    return head + failure.error.encode()


def key_record(hashed: bytes, value: bytes, failure: bytes | None, now_us: int) -> KeyRecord:
    """Read a stored key.

    Args:
        hashed: the key's hash.
        value: the stored key.
        failure: its stored failures, if any.
        now_us: the server's clock when they were read, in microseconds.

    Raises:
        StoreError: the value is not a key, or another version of this library wrote it.
    """
    if len(value) < _HEAD.size or value[0] != VERSION:
        raise StoreError("a stored key has a layout that this version cannot read; another version wrote it")
    _, fence, lease_until, update_at, expires_at, status, flags, owner, text_bytes, fingerprint_bytes = (
        _HEAD.unpack_from(value)
    )
    result_from = _HEAD.size + text_bytes + fingerprint_bytes
    attempts, last_error = stored_failure(failure)
    return KeyRecord(
        hash=hashed,
        text=value[_HEAD.size : _HEAD.size + text_bytes].decode("utf-8", "replace"),
        status=KeyStatus(status),
        fence=fence,
        lease_until_us=lease_until or None,
        update_at_us=update_at,
        expires_at_us=None if expires_at == NEVER_US else expires_at,
        attempts=attempts,
        last_error=last_error,
        result=value[result_from:] if flags & Flag.RESULT else None,
        now_us=now_us,
        held=owner == NOBODY and status < KeyStatus.DONE,
        deaths=stored_deaths(KeyStatus(status), owner, fence, update_at),
    )


def stored_failure(value: bytes | None) -> tuple[int, str | None]:
    """The attempts and the last error of a key; 0 and None without a failure."""
    if not value:
        return 0, None
    attempts, _, _ = _FAILURE.unpack_from(value)
    return attempts, value[_FAILURE.size :].decode("utf-8", "replace")


class Script(Lua):
    """A Lua file of this folder; `--#layout` in it is replaced by `layout.lua`.

    Args:
        name: the file's name, without `.lua`.
        durations: how long claims and keys last; None: the script needs none of it.
    """

    __slots__ = ()

    def __init__(self, name: str, durations: Durations | None = None) -> None:
        folder = files(__package__ or "")
        layout = (folder / "layout.lua").read_text()
        text = (folder / f"{name}.lua").read_text().replace("--#layout\n", layout)
        if durations is not None:
            text = _constants(durations) + text
        super().__init__(text)


def _constants(durations: Durations) -> str:
    """Constants are part of the text: passing one as an argument costs as much as a command."""
    lease_us, retention_us = durations.lease_us or 0, durations.retention_us
    # Counted from the claim, rounded up to milliseconds: no shorter than the lease or the retention.
    remember_ms = -(-max(lease_us, retention_us) // 1000) + 1
    return (
        f"local LEASE, RETENTION, REMEMBER_MS = {lease_us}, {retention_us}, '{remember_ms}'\n"
        f"local DEAD_RETENTION, NEVER = {durations.dead_retention_us or 0}, {NEVER_US}\n"
        f"local REASON = [[{UNKNOWN_EFFECT}]]\n"
    )
