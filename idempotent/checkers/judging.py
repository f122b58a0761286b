"""judge: the rule that answers a request for a stored key. Every store carries out its answer.

`claim.lua` repeats the rule for Redis, because it must run in the server. `docs/reference/checkers.md` shows the
rule as a table, which both, and each store, are tested against.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from idempotent.claims import (
    NOBODY,
    UNKNOWN_EFFECT,
    Claim,
    ClaimRequest,
    Decision,
    KeyStatus,
    Lapsed,
    Verdict,
)
from idempotent.values import changed, value


class Change(Enum):
    """The change that the store makes before it answers."""

    NONE = "none"
    STORE = "store"
    """Store the request's owner, status and fingerprint, the claim's fence, a new lease and expiry, and no result."""
    PARK = "park"
    """Make the key DEAD, with `UNKNOWN_EFFECT` as its last error. Keep its attempts."""


@value
class StoredKey:
    """A key as the store has it.

    Attributes:
        status: its state.
        owner: token of the owner.
        fence: fence of the owner's claim.
        rest_s: seconds until the lease ends, on the store's clock; negative: it has ended; infinite: it never ends.
        fingerprint: hash of the content; None: content is not compared.
        result: what the handler returned, if DONE.
        reason: the last error, if DEAD.
        deaths: how many lapsed claims in a row were taken over, the last one by this owner.
    """

    status: KeyStatus
    owner: bytes
    fence: int
    rest_s: float
    fingerprint: bytes | None = None
    result: bytes | None = None
    reason: str | None = None
    deaths: int = 0

    @property
    def free(self) -> bool:
        """Whether its handler failed and its backoff is over: anybody may claim it, as a key that is not stored."""
        return self.owner == NOBODY and self.rest_s < 0 and self.status.in_progress


@value
class Judgement:
    """A decision, and the change that must succeed first, conditioned on the stored owner and status."""

    decision: Decision
    change: Change = Change.NONE

    @property
    def claim(self) -> Claim:
        """The claim to store, for `Change.STORE`."""
        assert self.decision.claim is not None, "only a key that was acquired is stored"
        return self.decision.claim


# Python 3.11 takes as long to look up an enum's member as to create a small object.
_DONE: Final = KeyStatus.DONE
_DEAD: Final = KeyStatus.DEAD
_DUPLICATE: Final = Verdict.DUPLICATE
_PARKED: Final = Judgement(Decision(Verdict.DEAD, reason=UNKNOWN_EFFECT), Change.PARK)


def judge(stored: StoredKey | None, request: ClaimRequest, *, fence: int = 0) -> Judgement:
    """Decide about a request for a key.

    Args:
        stored: the stored key; None: it is not stored.
        request: the request for the key.
        fence: the fence for a free key: the store's clock in microseconds, greater than any earlier fence of the key.

    Returns the decision, and the change that the store makes in the same atomic step.
    """
    if stored is None or stored.free:
        return Judgement(Decision(Verdict.ACQUIRED, Claim(request.key, fence, request.owner)), Change.STORE)
    if stored.owner == request.owner:
        # The key is this request's own: MySQL's INSERT does not say so, or an earlier answer was lost.
        claim = Claim(request.key, stored.fence, request.owner, deaths=stored.deaths)
        return Judgement(Decision(Verdict.ACQUIRED, claim, deaths=stored.deaths))
    if stored.status is _DONE:
        return Judgement(Decision(_DUPLICATE, result=stored.result, fingerprint=stored.fingerprint))
    if stored.status is _DEAD:
        return Judgement(Decision(Verdict.DEAD, reason=stored.reason, fingerprint=stored.fingerprint))
    waiting = Decision(Verdict.IN_PROGRESS, retry_after_s=stored.rest_s, fingerprint=stored.fingerprint)
    if stored.owner == NOBODY:
        return Judgement(changed(waiting, held=True))
    if stored.rest_s >= 0:
        return Judgement(waiting)
    deaths = stored.deaths + 1
    if request.on_lapsed is Lapsed.LEAVE or request.differs(stored.fingerprint):
        return Judgement(changed(waiting, retry_after_s=0.0, deaths=deaths))
    if request.on_lapsed is Lapsed.PARK:
        return _PARKED
    claim = Claim(request.key, stored.fence + 1, request.owner, deaths=deaths)
    return Judgement(Decision(Verdict.ACQUIRED, claim, deaths=deaths), Change.STORE)


def stored_deaths(status: KeyStatus, owner: bytes, fence: int, update_at_us: int) -> int:
    """How many lapsed claims of a stored key in a row were taken over: `StoredKey.deaths`.

    The fence of a new claim is its time, which is stored as `update_at` too; a take-over adds one to the fence alone.
    """
    return fence - update_at_us if status.in_progress and owner != NOBODY else 0


def known(decision: Decision, request: ClaimRequest, failed: int) -> Decision:
    """The decision about a free key that is stored, if it was acquired: its claim has the attempt.

    Args:
        decision: the decision.
        request: its request.
        failed: how many executions have failed.
    """
    if decision.claim is None:
        return decision
    claim = changed(decision.claim, attempt=failed + 1, max_attempts=request.max_attempts)
    return changed(decision, claim=claim)


def done_expiry(status: KeyStatus, expiry: float, now: float, retention_s: float) -> float:
    """The expiry of a key that becomes DONE now: at least half of the retention is left, so that duplicates are known.

    Args:
        status: its status so far. A DEAD key has another retention.
        expiry: its expiry so far, in seconds on the store's clock.
        now: the store's clock.
        retention_s: seconds a key is remembered.
    """
    if status is _DEAD or expiry < now + retention_s / 2:
        return now + retention_s
    return expiry
