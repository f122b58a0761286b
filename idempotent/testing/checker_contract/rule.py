"""The claim rule as one table: a stored key and a request give the answer, and the key afterwards.

`judge` and `claim.lua` decide by this rule, and the statements of the SQL stores carry it out. Tests hold `judge`, and
each store through `CellsContract`, against every cell of the table. `docs/guarantees.md` shows it.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Final

from idempotent.checkers.judging import StoredKey
from idempotent.claims import (
    LAPSED_ERROR,
    NOBODY,
    UNKNOWN_EFFECT,
    ClaimRequest,
    Decision,
    KeyStatus,
    Lapsed,
    Verdict,
)
from idempotent.values import changed


class State(Enum):
    """What the rule distinguishes about a key, in the words of `docs/guarantees.md`."""

    FREE = "not stored"
    RETRY = "failed, backoff over"
    BACKOFF = "failed, backoff runs"
    RUNNING = "in progress"
    """Its lease runs, or never ends."""
    LAPSED = "lapsed"
    """It is in progress, and its lease has ended."""
    DONE = "`DONE`"
    DEAD = "`DEAD`"


class After(Enum):
    """The key after the answer, in the words of `docs/guarantees.md`."""

    UNCHANGED = "unchanged"
    CLAIMED = "the delivery's"
    """Owner, status and fingerprint are the request's; fence, lease and expiry are new."""
    PARKED = "`DEAD`, effect unknown"
    SPENT = "`DEAD`, attempts used up"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the rule. A condition that is None holds for every key and request.

    Attributes:
        states: of the stored key.
        mine: its owner is the request's: the request was stored before, and its answer was lost.
        taken_over: its owner took over a lapsed claim.
        in_group: it was claimed beside others.
        on_lapsed: the request's way with a lapsed key.
        other_content: both the key and the request have a fingerprint, and the two differ.
        last_attempt: a lapse uses up the request's `max_attempts`. Only a key that is asked for alone is counted.
        verdict: the answer.
        lapsed: `Decision.lapsed`; None: either.
        lapse_counts: `Decision.lapse_counts`; None: either.
        held: `Decision.held`.
        after: the key after the answer.
    """

    states: frozenset[State]
    _: KW_ONLY
    mine: bool | None = None
    taken_over: bool | None = None
    in_group: bool | None = None
    on_lapsed: Lapsed | None = None
    other_content: bool | None = None
    last_attempt: bool | None = None
    verdict: Verdict
    lapsed: bool | None = False
    lapse_counts: bool | None = False
    held: bool = False
    after: After = After.UNCHANGED

    def matches(self, stored: StoredKey | None, request: ClaimRequest) -> bool:
        """Whether the row is about this key and this request."""
        if state_of(stored) not in self.states:
            return False
        found = (
            (self.mine, stored is not None and stored.owner == request.owner),
            (self.taken_over, stored is not None and stored.lapsed),
            (self.in_group, stored is not None and stored.status is KeyStatus.IN_PROGRESS_GROUP),
            (self.on_lapsed, request.on_lapsed),
            (self.other_content, stored is not None and request.differs(stored.fingerprint)),
            (self.last_attempt, request.max_attempts == 1),
        )
        return all(wanted is None or wanted is given for wanted, given in found)


_FREE: Final = frozenset({State.FREE, State.RETRY})
_CLAIMED: Final = frozenset({State.RUNNING, State.LAPSED})
_FINAL: Final = frozenset({State.DONE, State.DEAD})
_DONE, _DEAD, _BACKOFF, _RUNNING, _LAPSED = (
    frozenset({state}) for state in (State.DONE, State.DEAD, State.BACKOFF, State.RUNNING, State.LAPSED)
)
_ACQUIRED, _TAKE_OVER = Verdict.ACQUIRED, Lapsed.TAKE_OVER

# The first row that matches decides.
RULE: Final = (
    Row(_FREE, verdict=_ACQUIRED, after=After.CLAIMED),
    Row(_CLAIMED, mine=True, taken_over=True, verdict=_ACQUIRED, lapsed=True, lapse_counts=None),
    Row(_CLAIMED, mine=True, verdict=_ACQUIRED),
    Row(_FINAL, mine=True, verdict=_ACQUIRED, lapsed=None, lapse_counts=None),
    Row(_DONE, verdict=Verdict.DUPLICATE),
    Row(_DEAD, verdict=Verdict.DEAD),
    Row(_BACKOFF, verdict=Verdict.IN_PROGRESS, held=True),
    Row(_RUNNING, verdict=Verdict.IN_PROGRESS),
    Row(_LAPSED, on_lapsed=Lapsed.LEAVE, verdict=Verdict.IN_PROGRESS, lapsed=True),
    Row(_LAPSED, other_content=True, verdict=Verdict.IN_PROGRESS, lapsed=True),
    Row(_LAPSED, on_lapsed=Lapsed.PARK, verdict=Verdict.DEAD, after=After.PARKED),
    Row(_LAPSED, in_group=True, on_lapsed=_TAKE_OVER, verdict=_ACQUIRED, lapsed=True, after=After.CLAIMED),
    Row(_LAPSED, on_lapsed=_TAKE_OVER, last_attempt=True, verdict=Verdict.DEAD, after=After.SPENT),
    Row(
        _LAPSED, on_lapsed=_TAKE_OVER, verdict=_ACQUIRED, lapsed=True, lapse_counts=True, after=After.CLAIMED
    ),
)


def state_of(stored: StoredKey | None) -> State:
    """The state of a key; None: it is not stored."""
    if stored is None:
        return State.FREE
    if not stored.status.in_progress:
        return State.DONE if stored.status is KeyStatus.DONE else State.DEAD
    over = stored.rest_s < 0
    if stored.owner == NOBODY:
        return State.RETRY if over else State.BACKOFF
    return State.LAPSED if over else State.RUNNING


def row_of(stored: StoredKey | None, request: ClaimRequest) -> Row:
    """The row that decides."""
    return next(row for row in RULE if row.matches(stored, request))


def faults_of(decision: Decision, stored: StoredKey | None, request: ClaimRequest) -> list[str]:
    """What of an answer is not as the rule says. Empty: nothing.

    Args:
        decision: the answer.
        stored: the key as it was stored. The answer may say less of its lease or backoff, because time passes.
        request: the request.
    """
    row = row_of(stored, request)
    told = stored if row.after is After.UNCHANGED and row.verdict is not Verdict.ACQUIRED else None
    expected = {
        "verdict": row.verdict,
        "lapsed": row.lapsed,
        "lapse_counts": row.lapse_counts,
        "held": row.held,
        "fingerprint": told and told.fingerprint,
        "result": told.result if told and row.verdict is Verdict.DUPLICATE else None,
        "reason": _reason(row, told),
    }
    either = {name for name in ("lapsed", "lapse_counts") if expected[name] is None}
    given = {name: getattr(decision, name) for name in expected}
    faults = [
        f"{name} is {given[name]!r}, not {expected[name]!r}"
        for name in expected
        if name not in either and given[name] != expected[name]
    ]
    if not _has_claim(decision, row, stored, request):
        faults.append(f"claim is {decision.claim}")
    longest_s = stored.rest_s if stored and row.verdict is Verdict.IN_PROGRESS and not row.lapsed else 0.0
    if not (0.0 < decision.retry_after_s <= longest_s or decision.retry_after_s == longest_s == 0.0):
        faults.append(f"retry_after_s is {decision.retry_after_s}, and {longest_s} are left")
    return faults


def _reason(row: Row, told: StoredKey | None) -> str | None:
    if row.after is After.PARKED:
        return UNKNOWN_EFFECT
    if row.after is After.SPENT:
        return LAPSED_ERROR
    return told.reason if told and row.verdict is Verdict.DEAD else None


def _has_claim(decision: Decision, row: Row, stored: StoredKey | None, request: ClaimRequest) -> bool:
    claim = decision.claim
    if row.verdict is not Verdict.ACQUIRED or claim is None:
        return claim is None and row.verdict is not Verdict.ACQUIRED
    fence = 0 if stored is None else stored.fence
    grows = row.after is After.CLAIMED
    right_fence = claim.fence > fence if grows else claim.fence == fence
    return right_fence and (claim.key, claim.owner) == (request.key, request.owner)


def key_after(
    decision: Decision, stored: StoredKey | None, request: ClaimRequest, lease_s: float | None
) -> StoredKey | None:
    """The key after an answer as the rule says.

    Args:
        decision: the answer.
        stored: the key before it.
        request: the request.
        lease_s: how long claims last, in seconds; None: they never lapse.
    """
    row = row_of(stored, request)
    if row.after is After.UNCHANGED:
        return stored
    if row.after is After.PARKED:
        assert stored is not None
        return changed(stored, status=KeyStatus.DEAD, reason=UNKNOWN_EFFECT)
    return StoredKey(
        status=KeyStatus.DEAD if row.after is After.SPENT else request.status,
        owner=request.owner,
        fence=decision.claim.fence if decision.claim else 0,
        rest_s=math.inf if lease_s is None else lease_s,
        fingerprint=request.fingerprint,
        reason=LAPSED_ERROR if row.after is After.SPENT else None,
        lapsed=bool(row.lapsed),
    )
