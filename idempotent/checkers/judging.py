"""judge: what a stored key means to a request. Every store carries out the same answer.

`claim.lua` is the same rule for Redis, where it has to run in the server.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from idempotent.claims import UNKNOWN_EFFECT, Claim, ClaimRequest, Decision, KeyStatus, Lapsed, Verdict
from idempotent.values import changed, value


class Change(Enum):
    """What the store has to do before it gives the answer."""

    NONE = "none"
    STORE = "store"
    """Store the request's owner, status and fingerprint, the claim's fence, a new lease and expiry, and no result."""
    PARK = "park"
    """Make the key DEAD, with `UNKNOWN_EFFECT` as its last error. Its attempts stay."""


@value
class StoredKey:
    """A key as the store has it.

    Attributes:
        status: its state.
        owner: token of the owner.
        fence: fence of the owner's claim.
        rest_s: seconds until the lease ends, on the store's clock; negative: it has ended; infinite: it never does.
        fingerprint: hash of the content; None: content is not compared.
        result: what the handler returned, once DONE.
        reason: the last error; needed when DEAD.
        lapsed: this owner took over a lapsed claim.
    """

    status: KeyStatus
    owner: bytes
    fence: int
    rest_s: float
    fingerprint: bytes | None = None
    result: bytes | None = None
    reason: str | None = None
    lapsed: bool = False


@value
class Judgement:
    """An answer, and the change that has to succeed first, conditioned on the stored owner and status."""

    decision: Decision
    change: Change = Change.NONE

    @property
    def claim(self) -> Claim:
        """The claim to store, of `Change.STORE`."""
        assert self.decision.claim is not None, "only a key that was acquired is stored"
        return self.decision.claim


_PARKED: Final = Judgement(Decision(Verdict.DEAD, reason=UNKNOWN_EFFECT), Change.PARK)


def judge(stored: StoredKey | None, request: ClaimRequest, *, fence: int = 0) -> Judgement:
    """What a stored key means to a request.

    Args:
        stored: the key; None: it is free.
        request: asks for the key.
        fence: for a free key: the store's clock in microseconds, greater than any earlier fence of the key.

    Returns the answer, and what the store has to change for it in the same atomic step.
    """
    if stored is None:
        return Judgement(Decision(Verdict.ACQUIRED, Claim(request.key, fence, request.owner)), Change.STORE)
    if stored.owner == request.owner:
        # The answer to an earlier try was lost.
        claim = Claim(request.key, stored.fence, request.owner)
        return Judgement(Decision(Verdict.ACQUIRED, claim, lapsed=stored.lapsed))
    if stored.status is KeyStatus.DONE:
        return Judgement(Decision(Verdict.DUPLICATE, result=stored.result, fingerprint=stored.fingerprint))
    if stored.status is KeyStatus.DEAD:
        return Judgement(Decision(Verdict.DEAD, reason=stored.reason, fingerprint=stored.fingerprint))
    waiting = Decision(Verdict.IN_PROGRESS, retry_after_s=stored.rest_s, fingerprint=stored.fingerprint)
    if stored.rest_s >= 0:
        return Judgement(waiting)
    if request.on_lapsed is Lapsed.LEAVE or request.differs(stored.fingerprint):
        return Judgement(changed(waiting, retry_after_s=0.0, lapsed=True))
    if request.on_lapsed is Lapsed.PARK:
        return _PARKED
    claim = Claim(request.key, stored.fence + 1, request.owner)
    alone = stored.status is not KeyStatus.IN_PROGRESS_GROUP
    return Judgement(Decision(Verdict.ACQUIRED, claim, lapsed=True, alone=alone), Change.STORE)
