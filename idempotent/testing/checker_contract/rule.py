"""The claim rule as one table, and its contract: a stored key and a request give the answer, and the key afterwards.

`judge` and `claim.lua` decide by this rule, and the statements of the SQL stores carry it out. Tests hold `judge`, and
each store through `CellsContract`, against every cell of the table. `docs/reference/checkers.md` shows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from itertools import product
from typing import Any, Final, TypeVar

from idempotent.checkers.judging import StoredKey
from idempotent.claims import (
    NOBODY,
    UNKNOWN_EFFECT,
    Claim,
    ClaimRequest,
    Completion,
    Decision,
    Failure,
    KeyStatus,
    Lapsed,
    Verdict,
    new_owner,
)
from idempotent.policy import Backoff
from idempotent.testing.checker_contract.base import LONG_S, Capability, ContractBase, acquired, needs
from idempotent.values import changed

T = TypeVar("T")

_OURS, _THEIRS = b"o" * 20, b"t" * 20
_ERROR: Final = "no"
_RESULT: Final = b'"result"'
_STATUSES: Final = (KeyStatus.IN_PROGRESS, KeyStatus.IN_PROGRESS_PARK)
_OVER_S: Final = -1.0
_SHOWN: Final = 10
_ALL_REQUESTS: Final[tuple[dict[str, Any], ...]] = tuple(
    {"on_lapsed": on_lapsed, "status": status, "fingerprint": fingerprint}
    for on_lapsed, status, fingerprint in product(Lapsed, _STATUSES, (None, _OURS, _THEIRS))
)
"""All that a delivery may ask for."""
_SOME_REQUESTS: Final = _ALL_REQUESTS[::5]
"""Some of these: any two values of different options occur together."""


class State(Enum):
    """What the rule distinguishes about a key, in the words of `docs/reference/checkers.md`."""

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
    """The key after the answer, in the words of `docs/reference/checkers.md`."""

    UNCHANGED = "unchanged"
    CLAIMED = "the delivery's"
    """Owner, status and fingerprint are the request's; fence, lease and expiry are new."""
    PARKED = "`DEAD`, effect unknown"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the rule. A condition that is None holds for every key and request.

    Attributes:
        states: of the stored key.
        mine: its owner is the request's: the request was stored before, and its answer was lost.
        taken_over: its owner took over a lapsed claim.
        on_lapsed: the request's way with a lapsed key.
        other_content: both the key and the request have a fingerprint, and the two differ.
        verdict: the answer.
        lapsed: `Decision.lapsed`; None: either.
        held: `Decision.held`.
        after: the key after the answer.
    """

    states: frozenset[State]
    _: KW_ONLY
    mine: bool | None = None
    taken_over: bool | None = None
    on_lapsed: Lapsed | None = None
    other_content: bool | None = None
    verdict: Verdict
    lapsed: bool | None = False
    held: bool = False
    after: After = After.UNCHANGED

    def matches(self, stored: StoredKey | None, request: ClaimRequest) -> bool:
        """Whether the row is about this key and this request."""
        if state_of(stored) not in self.states:
            return False
        found = (
            (self.mine, stored is not None and stored.owner == request.owner),
            (self.taken_over, stored is not None and stored.deaths > 0),
            (self.on_lapsed, request.on_lapsed),
            (self.other_content, stored is not None and request.differs(stored.fingerprint)),
        )
        return all(wanted is None or wanted is given for wanted, given in found)


_FREE: Final = frozenset({State.FREE, State.RETRY})
_CLAIMED: Final = frozenset({State.RUNNING, State.LAPSED})
_FINAL: Final = frozenset({State.DONE, State.DEAD})
_DONE, _DEAD, _BACKOFF, _RUNNING, _LAPSED = (
    frozenset({state}) for state in (State.DONE, State.DEAD, State.BACKOFF, State.RUNNING, State.LAPSED)
)
_ACQUIRED: Final = Verdict.ACQUIRED

# The first row that matches decides.
RULE: Final = (
    Row(_FREE, verdict=_ACQUIRED, after=After.CLAIMED),
    Row(_CLAIMED, mine=True, taken_over=True, verdict=_ACQUIRED, lapsed=True),
    Row(_CLAIMED, mine=True, verdict=_ACQUIRED),
    Row(_FINAL, mine=True, verdict=_ACQUIRED, lapsed=None),
    Row(_DONE, verdict=Verdict.DUPLICATE),
    Row(_DEAD, verdict=Verdict.DEAD),
    Row(_BACKOFF, verdict=Verdict.IN_PROGRESS, held=True),
    Row(_RUNNING, verdict=Verdict.IN_PROGRESS),
    Row(_LAPSED, on_lapsed=Lapsed.LEAVE, verdict=Verdict.IN_PROGRESS, lapsed=True),
    Row(_LAPSED, other_content=True, verdict=Verdict.IN_PROGRESS, lapsed=True),
    Row(_LAPSED, on_lapsed=Lapsed.PARK, verdict=Verdict.DEAD, after=After.PARKED),
    Row(_LAPSED, verdict=_ACQUIRED, lapsed=True, after=After.CLAIMED),
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
        "deaths": _deaths(row, stored),
        "held": row.held,
        "fingerprint": told and told.fingerprint,
        "result": told.result if told and row.verdict is Verdict.DUPLICATE else None,
        "reason": _reason(row, told),
    }
    either = {"lapsed", "deaths"} if row.lapsed is None else set()
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
    return told.reason if told and row.verdict is Verdict.DEAD else None


def _deaths(row: Row, stored: StoredKey | None) -> int:
    if not row.lapsed or stored is None:
        return 0
    return stored.deaths if row.mine else stored.deaths + 1


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
        status=request.status,
        owner=request.owner,
        fence=decision.claim.fence if decision.claim else 0,
        rest_s=math.inf if lease_s is None else lease_s,
        fingerprint=request.fingerprint,
        deaths=_deaths(row, stored),
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of stored key.

    Attributes:
        state: what it is when it is asked for.
        status: it was claimed with.
        fingerprint: it was claimed with.
        mine: the request has the token of its owner.
    """

    state: State
    status: KeyStatus = KeyStatus.IN_PROGRESS
    fingerprint: bytes | None = None
    mine: bool = False


@dataclass(slots=True)
class _Cell:
    """One key, and the request for it.

    Attributes:
        kind: what is stored.
        request: is made for the key.
        together: with those for other keys, instead of alone.
        owner: token of the owner that has stored the key.
        stored: the key, as the rule says that it is stored now.
        claims: those that were made of it.
        faults: how an answer differs from the rule. Nothing more is asked after such an answer.
    """

    kind: _Kind
    request: ClaimRequest
    together: bool
    owner: bytes
    stored: StoredKey | None = None
    claims: list[Claim] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        asked = self.request
        return (
            f"{self.kind}, asked {'together' if self.together else 'alone'} with {asked.on_lapsed}, {asked.status!r},"
            f" fingerprint={asked.fingerprint!r}: {'; '.join(self.faults)}"
        )


class _Walk:
    """Stores keys, asks for each in every way, and compares the answers with the rule.

    Args:
        contract: of the checker.
        kinds: of keys to store.
        requests: for each of the keys.
        lapses: claims have a lease.
    """

    def __init__(
        self,
        contract: ContractBase,
        kinds: Sequence[_Kind],
        requests: Sequence[dict[str, Any]] = _SOME_REQUESTS,
        *,
        lapses: bool = True,
    ) -> None:
        self._contract = contract
        self._recorded = contract.has(Capability.RECORDED_CLAIMS)
        self._lapses = lapses and contract.has(Capability.LEASES)
        lease_s = contract.steady_lease_s if lapses else None
        self._checker = contract.checker(lease_s=lease_s, retention_s=100 * LONG_S)
        self._cells = [
            self._cell(kind, contract.request(f"m-{number}", **options), together=together)
            for number, (kind, options, together) in enumerate(product(kinds, requests, (False, True)))
            if self._recorded or not kind.mine
        ]

    @staticmethod
    def _cell(kind: _Kind, request: ClaimRequest, *, together: bool) -> _Cell:
        return _Cell(kind, request, together, request.owner if kind.mine else new_owner())

    def run(self) -> None:
        """Do all this.

        Raises:
            AssertionError: answers differ from the rule.
        """
        cells = self._cells
        self._store()
        for cell in cells:
            if not cell.together:
                self._compare([(cell, cell.request)], self._checker.lone.claim(cell.request))
        self._ask((cell, cell.request) for cell in cells if cell.together)
        if self._recorded:
            # Who asks twice gets the same answer. Who owned the key owns it still, or learns that it is lost.
            known = [cell for cell in cells if cell.stored and cell.stored.fence]
            self._ask((cell, cell.request) for cell in known)
            self._ask((cell, _leaving(cell, cell.owner)) for cell in known)
        self._ask((cell, _leaving(cell, new_owner())) for cell in cells)
        if self._lapses:
            # Only now does the stored status show.
            self._lapse([c for c in cells if not c.faults and state_of(c.stored) is State.RUNNING])
            self._ask((cell, ClaimRequest(cell.request.key)) for cell in cells)
        wrong = [str(cell) for cell in cells if cell.faults]
        assert not wrong, f"{len(wrong)} of {len(cells)} cells:\n" + "\n".join(wrong[:_SHOWN])

    def _store(self) -> None:
        """Store the keys, first those that are aged."""
        of = {state: [cell for cell in self._cells if cell.kind.state is state] for state in State}
        backoff = self._contract.backoff
        self._fail(of[State.RETRY], Failure(_ERROR, 100, backoff=backoff))
        if of[State.RETRY]:
            self._contract.age(self._checker, backoff.initial_s + 1.0)
        self._claim(of[State.LAPSED])
        self._lapse(of[State.LAPSED])
        self._fail(of[State.BACKOFF], Failure(_ERROR, 100, backoff=Backoff(LONG_S, LONG_S)))
        self._fail(of[State.DEAD], Failure(_ERROR, 1))
        self._claim(of[State.DONE])
        self._checker.protocol.complete_many([Completion(cell.claims[0], _RESULT) for cell in of[State.DONE]])
        self._claim(of[State.RUNNING])
        for cell in self._cells:
            cell.stored = self._as_stored(cell)

    def _as_stored(self, cell: _Cell) -> StoredKey | None:
        """The key of a cell that was stored as its kind says."""
        kind = cell.kind
        if kind.state is State.FREE:
            return None
        fence, lease_s = cell.claims[0].fence, self._checker.lease_s
        match kind.state:
            case State.RETRY:
                return StoredKey(KeyStatus.IN_PROGRESS, NOBODY, fence, _OVER_S)
            case State.BACKOFF:
                return StoredKey(KeyStatus.IN_PROGRESS, NOBODY, fence, LONG_S)
            case State.DONE:
                return StoredKey(KeyStatus.DONE, cell.owner, fence, 0.0, kind.fingerprint, result=_RESULT)
            case State.DEAD:
                # With a transaction the fingerprint was rolled back.
                content = kind.fingerprint if self._recorded else None
                return StoredKey(KeyStatus.DEAD, cell.owner, fence, 0.0, content, reason=_ERROR)
            case State.LAPSED:
                return StoredKey(kind.status, cell.owner, fence, _OVER_S, kind.fingerprint)
            case _:
                rest_s = math.inf if lease_s is None else lease_s
                return StoredKey(kind.status, cell.owner, fence, rest_s, kind.fingerprint)

    def _claim(self, cells: Sequence[_Cell]) -> None:
        for part in _by_status(cells, lambda cell: cell.kind.status):
            requests = [
                ClaimRequest(cell.request.key, cell.owner, cell.kind.fingerprint, cell.kind.status)
                for cell in part
            ]
            for cell, decision in zip(part, self._checker.protocol.claim_many(requests), strict=True):
                cell.claims.append(acquired(decision))

    def _fail(self, cells: Sequence[_Cell], failure: Failure) -> None:
        self._claim(cells)
        self._checker.protocol.release_many([(cell.claims[0], failure) for cell in cells])

    def _lapse(self, cells: Sequence[_Cell]) -> None:
        for cell in cells:
            for claim in cell.claims:
                self._checker.protocol.abandon(claim)
            if cell.stored is not None:
                cell.stored = changed(cell.stored, rest_s=_OVER_S)
        if cells:
            self._contract.lapse(self._checker, *(cell.claims[-1] for cell in cells))

    def _ask(self, asked: Iterable[tuple[_Cell, ClaimRequest]]) -> None:
        """Ask for many keys in one call; those with another status in another one, because a store may do so too."""
        pairs = [(cell, request) for cell, request in asked if not cell.faults]
        for part in _by_status(pairs, lambda pair: pair[1].status):
            self._compare(part, *self._checker.protocol.claim_many([request for _, request in part]))

    def _compare(self, asked: Sequence[tuple[_Cell, ClaimRequest]], *decisions: Decision) -> None:
        protocol = self._checker.protocol
        if not self._recorded:
            protocol.complete_many([Completion(decision.claim) for decision in decisions if decision.claim])
        for (cell, request), decision in zip(asked, decisions, strict=True):
            cell.faults += faults_of(decision, cell.stored, request)
            if cell.faults:
                continue
            cell.stored = key_after(decision, cell.stored, request, self._checker.lease_s)
            if decision.claim is None or cell.stored is None:
                continue
            cell.claims.append(decision.claim)
            if not self._recorded:
                cell.stored = changed(cell.stored, status=KeyStatus.DONE)
            elif state_of(cell.stored) is State.LAPSED:
                protocol.abandon(decision.claim)  # or a renewal gives it a new lease


class CellsContract(ContractBase):
    """Answers and changes are those of the table: each kind of stored key is asked for in each way."""

    def test_a_key_that_has_not_lapsed_answers_by_the_rule(self) -> None:
        kinds = [
            *map(_Kind, (State.FREE, State.RETRY, State.BACKOFF)),
            *_kinds(State.DONE),
            *_kinds(State.DEAD),
        ]
        if self.has(Capability.RECORDED_CLAIMS):
            kinds += _kinds(State.RUNNING, *_STATUSES)
        _Walk(self, kinds).run()

    @needs(Capability.RECORDED_CLAIMS)
    def test_a_key_whose_claim_never_lapses_answers_by_the_rule(self) -> None:
        _Walk(self, _kinds(State.RUNNING), lapses=False).run()

    @needs(Capability.LEASES)
    def test_a_lapsed_key_answers_by_the_rule(self) -> None:
        _Walk(self, _kinds(State.LAPSED, *_STATUSES), _ALL_REQUESTS).run()


def _by_status(cells: Sequence[T], status: Callable[[T], KeyStatus]) -> list[list[T]]:
    parts = [[cell for cell in cells if status(cell) is each] for each in _STATUSES]
    return [part for part in parts if part]


def _kinds(state: State, *statuses: KeyStatus) -> list[_Kind]:
    """Keys of this state, with and without a fingerprint, and those that the request itself has claimed before."""
    return [
        _Kind(state, status, fingerprint, mine)
        for status in statuses or _STATUSES[:1]
        for fingerprint, mine in ((None, False), (_OURS, False), (_OURS, True))
    ]


def _leaving(cell: _Cell, owner: bytes) -> ClaimRequest:
    """A request that changes nothing of a stored key."""
    return ClaimRequest(cell.request.key, owner, on_lapsed=Lapsed.LEAVE)
