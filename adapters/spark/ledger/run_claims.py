"""RunClaims: the verdicts of a run's keys, by the run that owns each key and that run's state."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeAlias

from idempotent.adapters.spark.ledger.claims import Owner
from idempotent.adapters.spark.ledger.ledger import RunLedger
from idempotent.adapters.spark.ledger.refusals import command, require_alive, unclaimed_key
from idempotent.adapters.spark.ledger.runs import RunRef, RunState, Standing
from idempotent.adapters.spark.ledger.waits import Patience
from idempotent.errors import RunConflictError, StoreReplacedError

_NO_OWNER: Final = Owner(0, 0)
_UNKNOWN: Final = Standing(RunState.UNKNOWN)


class RowVerdict(Enum):
    """What happens to a row with a key."""

    NEW = "new"
    """This run owns the key: emit the row, in every evaluation."""
    DUPLICATE = "duplicate"
    """A committed run owns the key, or another frame of this run: drop the row."""
    CONFLICT = "conflict"
    """A run that has not ended owns the key: put the row aside for a later run. Only with OnConflict.DIVERT."""


class OnConflict(Enum):
    """What to do about a key of a run that has not ended. A dropped row would be lost if that run dies.

    In each case an OPEN run whose lease has ended is aborted.
    """

    WAIT = "wait"
    """Wait until that run has ended."""
    FAIL = "fail"
    """Raise RunConflictError."""
    DIVERT = "divert"
    """Answer CONFLICT."""


@dataclass(frozen=True, slots=True)
class KeyDecision:
    """The verdict of one key, with its reasons.

    Attributes:
        verdict: what happens to its rows.
        token: of the owning run.
        other_payload: the owner claimed the key with another fingerprint: an update, or two things with one key.
    """

    verdict: RowVerdict
    token: int
    other_payload: bool


class RunClaims:
    """The claims of one run. One object for a task is enough: it remembers which other runs have ended.

    Args:
        ledger: the store of the claims.
        ref: the run and its attempt.
        frame: the number of the frame whose keys these are: of two frames of a run that share a key, one has it.
        on_conflict: what to do about keys of runs that have not ended.
        timeout_s: longest wait with WAIT for another run, in seconds, of all tasks of this attempt and all their tries
            together: two runs may wait for each other.
        poll_s: seconds between two reads of the other runs' states.
        sleep: waits for a number of seconds; replaced in tests.
        monotonic: a clock in seconds; replaced in tests.
    """

    def __init__(
        self,
        ledger: RunLedger,
        ref: RunRef,
        *,
        frame: int = 0,
        on_conflict: OnConflict = OnConflict.WAIT,
        timeout_s: float = 600.0,
        poll_s: float = 0.5,
        sleep: Callable[[float], object] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Send nothing to the store yet."""
        self._ledger = ledger
        self._ref = ref
        self._frame = frame
        self._on_conflict = on_conflict
        self._timeout_s = timeout_s
        self._poll_s = poll_s
        self._sleep = sleep
        self._monotonic = monotonic
        self._ended: dict[int, Standing] = {}
        self._closed = False

    def decide(
        self, hashes: Sequence[bytes], fingerprints: Sequence[bytes | None] | None = None
    ) -> list[RowVerdict]:
        """The verdicts of these keys, aligned. As `decide_each`, but faster for each key without fingerprints."""
        if fingerprints is not None:
            return [decision.verdict for decision in self.decide_each(hashes, fingerprints)]
        verdicts: list[RowVerdict | None] = []
        questions: _Questions = {}
        for owners in self._ledger.owners(self._ref, hashes, insert=not self._closed, frame=self._frame):
            known = owners.spread([self._known_verdict(owner) for owner in owners.distinct])
            if None in known:
                part = hashes[len(verdicts) : len(verdicts) + len(known)]
                for key_hash, owner, verdict in zip(part, owners.spread(owners.distinct), known, strict=True):
                    if verdict is None:
                        _ask_about(questions, key_hash, owner)
            verdicts += known
        decided: dict[bytes, KeyDecision] = {}
        self._resolve(questions, {}, decided)
        return [verdict or decided[h].verdict for h, verdict in zip(hashes, verdicts, strict=True)]

    def decide_each(
        self, hashes: Sequence[bytes], fingerprints: Sequence[bytes | None] | None = None
    ) -> list[KeyDecision]:
        """Claim keys; the verdict of each, the same in every call.

        While the run is OPEN, it claims keys without an owner and takes over keys whose claims can never count. Once it
        is PREPARED or COMMITTED it claims nothing. Mostly one round trip for 1,000 keys, see `RunLedger.claim`; one
        more for an owner that was not known to have ended.

        Args:
            hashes: of the keys, 20 bytes each, all different. 1,000 at a time are best.
            fingerprints: of the payloads, 8 bytes each or None, aligned.

        Raises:
            RunConflictError: with FAIL, or after `timeout_s` with WAIT.
            RunFencedError: this run was aborted, or another driver has taken it over.
            RunInputChangedError: this run is PREPARED or COMMITTED, and a key was never claimed. With DIVERT the key
                may be one that was put aside, and is a CONFLICT again.
            StoreReplacedError: the store does not know this run, or the owner of a key.
            StoreError: the store failed, or did not answer.
        """
        marks = dict(zip(hashes, fingerprints, strict=True)) if fingerprints else {}
        decided: dict[bytes, KeyDecision] = {}
        self._resolve(self._ask(hashes, marks, decided), marks, decided)
        return [decided[key_hash] for key_hash in hashes]

    def _resolve(self, questions: _Questions, marks: _Marks, decided: dict[bytes, KeyDecision]) -> None:
        """Decide about all keys in these questions, with as many rounds and waits as that takes."""
        hashes = [key_hash for keys in questions.values() for key_hash in keys]
        suspects: set[int] = set()
        patience = Patience(self._timeout_s, sleep=self._sleep, monotonic=self._monotonic)
        while questions:
            was_closed = self._closed
            standings = self._look(questions)
            # Once the run is closed, owners that were read while it was OPEN may be out of date.
            if self._closed == was_closed:
                steps = {
                    seen: self._step(seen, keys, standings, marks, decided)
                    for seen, keys in questions.items()
                }
                lost = {seen.token for seen, step in steps.items() if step is _Step.LOST}
                if lost & suspects:
                    raise StoreReplacedError(
                        f"{self._ledger.where} does not know the run that owns a key: it lost runs. Restore it, "
                        "or begin all runs of this consumer in a new store"
                    )
                suspects |= lost
                if set(steps.values()) - {_Step.DECIDED} == {_Step.WAIT}:
                    self._wait(patience, standings)
            questions = self._ask([h for h in hashes if h not in decided], marks, decided)
        patience.over(self._ref)

    def _ask(self, pending: Sequence[bytes], marks: _Marks, decided: dict[bytes, KeyDecision]) -> _Questions:
        """Claim, and decide about keys whose verdict is known at once. The other keys, by their owner."""
        if not pending:
            return {}
        fingerprints = [marks.get(key_hash) for key_hash in pending] if marks else None
        owners = self._ledger.claim(
            self._ref, pending, insert=not self._closed, frame=self._frame, fingerprints=fingerprints
        )
        questions: _Questions = {}
        for key_hash, owner in zip(pending, owners, strict=True):
            verdict = self._known_verdict(owner)
            if owner is None or verdict is None:
                _ask_about(questions, key_hash, owner)
            else:
                different = _differ(owner.fingerprint, marks.get(key_hash))
                decided[key_hash] = KeyDecision(verdict, owner.token, different)
        return questions

    def _known_verdict(self, owner: Owner | None) -> RowVerdict | None:
        """The verdict of this owner's keys; None if the owner's state has to be read first."""
        if owner is None:
            return None
        if owner.token == self._ref.token:
            if owner.mark != self._ref.epoch:
                return None
            return RowVerdict.NEW if owner.frame == self._frame else RowVerdict.DUPLICATE
        ended = self._ended.get(owner.token)
        return RowVerdict.DUPLICATE if ended is not None and ended.counts(owner.mark) else None

    def _look(self, questions: _Questions) -> dict[int, Standing]:
        """How far the owners and this run are, whose attempt must be the one that evaluates."""
        mine = self._ref.token
        standings = self._ledger.standing_of({mine, *(seen.token for seen in questions)} - {_NO_OWNER.token})
        self._ended |= {
            token: each for token, each in standings.items() if each.state.is_final and token != mine
        }
        require_alive(self._ref, standings[mine], self._ledger.where)
        self._closed |= standings[mine].is_closed
        return standings

    def _step(
        self,
        seen: Owner,
        keys: _Marks,
        standings: Mapping[int, Standing],
        marks: _Marks,
        decided: dict[bytes, KeyDecision],
    ) -> _Step:
        """Take the next step for the keys of one owner, by its token and mark."""
        owner = standings.get(seen.token, _UNKNOWN)
        if owner.counts(seen.mark):
            for key_hash, mark in keys.items():
                different = _differ(mark, marks.get(key_hash))
                decided[key_hash] = KeyDecision(RowVerdict.DUPLICATE, seen.token, different)
            return _Step.DECIDED
        if self._closed:
            # No waiting here: two PREPARED runs could wait for each other for ever.
            if self._on_conflict is not OnConflict.DIVERT:
                raise unclaimed_key(self._ref, standings[self._ref.token].state)
            return self._divert(seen.token, keys, marks, decided)
        if seen == _NO_OWNER:
            return _Step.AGAIN
        if seen.token == self._ref.token or owner.frees(seen.mark):
            return self._steal(seen, keys, marks, decided)
        if owner.state is RunState.UNKNOWN:
            return _Step.LOST  # normal once: gc may have deleted claim and run since the claim was read
        if owner.state is RunState.OPEN and self._ledger.abort_other(seen.token, owner, self._ref):
            return _Step.AGAIN
        return self._meet_live(seen.token, owner, keys, marks, decided)

    def _steal(self, seen: Owner, keys: _Marks, marks: _Marks, decided: dict[bytes, KeyDecision]) -> _Step:
        hashes = list(keys)
        fingerprints = [marks.get(key_hash) for key_hash in hashes] if marks else None
        stolen = self._ledger.steal(self._ref, seen, hashes, frame=self._frame, fingerprints=fingerprints)
        for key_hash in stolen:
            decided[key_hash] = KeyDecision(RowVerdict.NEW, self._ref.token, other_payload=False)
        return _Step.DECIDED if len(stolen) == len(hashes) else _Step.AGAIN

    def _meet_live(
        self, token: int, owner: Standing, keys: _Marks, marks: _Marks, decided: dict[bytes, KeyDecision]
    ) -> _Step:
        match self._on_conflict:
            case OnConflict.WAIT:
                return _Step.WAIT
            case OnConflict.DIVERT:
                return self._divert(token, keys, marks, decided)
            case OnConflict.FAIL:
                raise RunConflictError(
                    f"{self._ref}: {len(keys)} keys are owned by {owner}. Try again when that run has ended. Type: "
                    f"{self._show(owner)}"
                )

    def _divert(self, token: int, keys: _Marks, marks: _Marks, decided: dict[bytes, KeyDecision]) -> _Step:
        for key_hash, mark in keys.items():
            decided[key_hash] = KeyDecision(RowVerdict.CONFLICT, token, _differ(mark, marks.get(key_hash)))
        return _Step.DECIDED

    def _wait(self, patience: Patience, standings: Mapping[int, Standing]) -> None:
        others = {token: each for token, each in standings.items() if token != self._ref.token}
        live = {token: each for token, each in others.items() if not each.state.is_final} or others
        shown = ", ".join(map(str, live.values()))
        patience.share(self._ledger.store, self._ref, (f"run {token}".encode() for token in live))
        if not patience.wait(self._ref, lambda: f"keys of other runs: {shown}", self._poll_s):
            raise RunConflictError(
                f"{self._ref}: waited {self._timeout_s:g} s for keys of other runs: {shown}. An OPEN one is taken over "
                "when its lease ends. Begin a PREPARED one again: publish it, or abort it. "
                f"Type: {self._show(next(iter(live.values())))}"
            )

    def _show(self, other: Standing) -> str:
        """What to type about a run, which is of the same consumer."""
        return command("show", replace(self._ref, run_id=other.run_id))


class _Step(Enum):
    """The result of one step for the keys of one owner."""

    DECIDED = "decided"
    AGAIN = "again"
    WAIT = "wait"
    LOST = "lost"


_Marks: TypeAlias = dict[bytes, bytes | None]
_Questions: TypeAlias = dict[Owner, _Marks]
"""For each owner, by token and mark alone, the keys to decide about and their fingerprints."""


def _ask_about(questions: _Questions, key_hash: bytes, owner: Owner | None) -> None:
    seen = _NO_OWNER if owner is None else Owner(owner.token, owner.mark)
    questions.setdefault(seen, {})[key_hash] = None if owner is None else owner.fingerprint


def _differ(one: bytes | None, other: bytes | None) -> bool:
    return one is not None and other is not None and one != other
