"""Entry and Attempts: what MemoryKeys stores."""

from __future__ import annotations

from dataclasses import dataclass

from idempotent.claims import KeyStatus
from idempotent.keys import Key


@dataclass(slots=True)
class Entry:
    """One stored key. Times are seconds of the checker's clock."""

    key: Key
    status: KeyStatus
    owner: bytes
    fence: int
    lease_until: float
    fingerprint: bytes | None
    update_at: float
    expires_at: float
    result: bytes | None = None
    lapsed: bool = False
    """Whether its owner took over a lapsed claim."""


@dataclass(slots=True)
class Attempts:
    """The number of times that a key's handler has failed, and the last error."""

    count: int
    error: str
    expires_at: float = 0.0
