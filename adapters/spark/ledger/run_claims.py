"""RunClaims: the verdicts of a run's keys, by the run that owns each key and that run's state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeAlias

from idempotent.adapters.spark.ledger.claims import HANDLED, Owner, mixed_modes
from idempotent.adapters.spark.ledger.ledger import RunLedger
from idempotent.adapters.spark.ledger.refusals import command, require_alive, unclaimed_key
from idempotent.adapters.spark.ledger.runs import RunRef, RunRow, RunState
from idempotent.adapters.spark.ledger.waits import Patience
from idempotent.errors import RunConflictError, StoreReplacedError

_NO_OWNER: Final = Owner(0, 0)


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
        other_payload: the owner claimed the key with another fingerprint: an update, or two things with one key.
    """

    verdict: RowVerdict
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
    ) -> None:
        """Send nothing to the store yet."""
        self._ledger = ledger
        self._ref = ref
        self._frame = frame
        self._on_conflict = on_conflict
        self._timeout_s = timeout_s
        self._poll_s = poll_s
        self._ended: dict[int, RunRow] = {}
        self._closed = False

    def decide(self, hashes: Sequence[bytes]) -> list[RowVerdict]:
        """The verdicts of these keys, aligned. As `decide_each` without fingerprints, but faster for each key."""
        owners = self._claim(hashes, {})
        known: dict[Owner | None, RowVerdict] = {}
        # Once for each owner: of most calls all keys have the same.
        for owner in set(owners):
            if (verdict := self._known_verdict(owner)) is None:
                return [decision.verdict for decision in self._decide(hashes, {}, owners)]
            known[owner] = verdict
        return [known[owner] for owner in owners]

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
            ConfigurationError: mode replay or effect has claimed a key.
            StoreError: the store failed, or did not answer.
        """
        payloads = dict(zip(hashes, fingerprints, strict=True)) if fingerprints else {}
        return self._decide(hashes, payloads, self._claim(hashes, payloads))

    def _claim(self, hashes: Sequence[bytes], payloads: _Payloads) -> list[Owner | None]:
        """The owners of these keys, once this run has claimed those without one, if it still may."""
        fingerprints = [payloads[key_hash] for key_hash in hashes] if payloads else None
        return self._ledger.claim(
            self._ref, hashes, insert=not self._closed, frame=self._frame, fingerprints=fingerprints
        )

    def _decide(
        self, hashes: Sequence[bytes], payloads: _Payloads, owners: Sequence[Owner | None]
    ) -> list[KeyDecision]:
        """Decide about all keys, which had these owners, with as many rounds and waits as that takes."""
        keys = _Keys(payloads)
        questions = self._questions(hashes, owners, keys)
        suspects: set[int] = set()
        patience = self._ledger.patience(self._timeout_s)
        while questions:
            was_closed = self._closed
            rows = self._look(questions)
            # Once the run is closed, owners that were read while it was OPEN may be out of date.
            if self._closed == was_closed:
                steps = {seen: self._step(seen, found, rows, keys) for seen, found in questions.items()}
                lost = {seen.token for seen, step in steps.items() if step is _Step.LOST}
                if lost & suspects:
                    raise StoreReplacedError(
                        f"{self._ledger.store.where} does not know the run that owns a key: it lost runs. Restore it, "
                        "or begin all runs of this consumer in a new store"
                    )
                suspects |= lost
                if set(steps.values()) - {_Step.DECIDED} == {_Step.WAIT}:
                    self._wait(patience, rows)
            pending = [key_hash for key_hash in hashes if key_hash not in keys.decided]
            questions = self._questions(pending, self._claim(pending, payloads), keys)
        patience.over(self._ref)
        return [keys.decided[key_hash] for key_hash in hashes]

    def _questions(
        self, hashes: Sequence[bytes], owners: Sequence[Owner | None], keys: _Keys
    ) -> dict[Owner, _Payloads]:
        """Decide about keys whose verdict is known at once. The others, by their owner's token and mark alone."""
        questions: dict[Owner, _Payloads] = {}
        for key_hash, owner in zip(hashes, owners, strict=True):
            found = {key_hash: None if owner is None else owner.fingerprint}
            verdict = self._known_verdict(owner)
            if verdict is not None:
                keys.decide(verdict, found)
            else:
                seen = _NO_OWNER if owner is None else Owner(owner.token, owner.mark)
                questions.setdefault(seen, {}).update(found)
        return questions

    def _known_verdict(self, owner: Owner | None) -> RowVerdict | None:
        """The verdict of this owner's keys; None if the owner's state has to be read first."""
        if owner is None:
            return None
        if owner.frame == HANDLED:
            raise mixed_modes("replay or effect", "dedup")
        if owner.token == self._ref.token:
            if owner.mark != self._ref.epoch:
                return None
            return RowVerdict.NEW if owner.frame == self._frame else RowVerdict.DUPLICATE
        ended = self._ended.get(owner.token)
        return RowVerdict.DUPLICATE if ended is not None and ended.counts(owner.mark) else None

    def _look(self, questions: Iterable[Owner]) -> dict[int, RunRow]:
        """The runs of the owners, and this run, whose attempt must be the one that evaluates."""
        mine = self._ref.token
        rows = self._ledger.rows({mine, *(seen.token for seen in questions)} - {_NO_OWNER.token})
        self._ended |= {token: each for token, each in rows.items() if each.state.is_final and token != mine}
        require_alive(self._ref, rows[mine], self._ledger.store.where)
        self._closed |= rows[mine].is_closed
        return rows

    def _step(self, seen: Owner, found: _Payloads, rows: Mapping[int, RunRow], keys: _Keys) -> _Step:
        """Take the next step for the keys of one owner, by its token and mark."""
        owner = rows.get(seen.token) or RunRow.unknown(seen.token)
        if owner.counts(seen.mark):
            return keys.decide(RowVerdict.DUPLICATE, found)
        if self._closed:
            # No waiting here: two PREPARED runs could wait for each other for ever.
            if self._on_conflict is not OnConflict.DIVERT:
                raise unclaimed_key(self._ref, rows[self._ref.token].state)
            return keys.decide(RowVerdict.CONFLICT, found)
        if seen == _NO_OWNER:
            return _Step.AGAIN
        if seen.token == self._ref.token or owner.frees(seen.mark):
            return self._steal(seen, found, keys)
        if owner.state is RunState.UNKNOWN:
            return _Step.LOST  # normal once: gc may have deleted claim and run since the claim was read
        if owner.state is RunState.OPEN and self._ledger.abort_other(seen.token, owner, self._ref):
            return _Step.AGAIN
        if self._on_conflict is OnConflict.FAIL:
            raise RunConflictError(
                f"{self._ref}: {len(found)} keys are owned by {owner}. Try again when that run has ended. Type: "
                f"{self._show(owner)}"
            )
        return _Step.WAIT if self._on_conflict is OnConflict.WAIT else keys.decide(RowVerdict.CONFLICT, found)

    def _steal(self, seen: Owner, found: _Payloads, keys: _Keys) -> _Step:
        hashes = list(found)
        fingerprints = [keys.payloads[key_hash] for key_hash in hashes] if keys.payloads else None
        stolen = self._ledger.steal(self._ref, seen, hashes, frame=self._frame, fingerprints=fingerprints)
        keys.decide(RowVerdict.NEW, dict.fromkeys(stolen))
        return _Step.DECIDED if len(stolen) == len(hashes) else _Step.AGAIN

    def _wait(self, patience: Patience, rows: Mapping[int, RunRow]) -> None:
        others = {token: each for token, each in rows.items() if token != self._ref.token}
        live = {token: each for token, each in others.items() if not each.state.is_final} or others
        shown = ", ".join(map(str, live.values()))
        patience.share(self._ledger.store, self._ref, (f"run {token}".encode() for token in live))
        if not patience.wait(self._ref, lambda: f"keys of other runs: {shown}", self._poll_s):
            raise RunConflictError(
                f"{self._ref}: waited {self._timeout_s:g} s for keys of other runs: {shown}. An OPEN one is taken over "
                "when its lease ends. Begin a PREPARED one again: publish it, or abort it. "
                f"Type: {self._show(next(iter(live.values())))}"
            )

    def _show(self, other: RunRow) -> str:
        """What to type about a run, which is of the same consumer."""
        return command("show", replace(self._ref, run_id=other.ref.run_id))


class _Step(Enum):
    """The result of one step for the keys of one owner."""

    DECIDED = "decided"
    AGAIN = "again"
    WAIT = "wait"
    LOST = "lost"


_Payloads: TypeAlias = dict[bytes, bytes | None]
"""Keys, by their hashes, and the fingerprints of their payloads."""


class _Keys:
    """The keys of one call, with the payloads that this run has, and what is decided about them."""

    def __init__(self, payloads: _Payloads) -> None:
        self.payloads = payloads
        self.decided: dict[bytes, KeyDecision] = {}

    def decide(self, verdict: RowVerdict, found: _Payloads) -> _Step:
        """Decide about keys that were claimed with the payloads found."""
        for key_hash, payload in found.items():
            mine = self.payloads.get(key_hash)
            differs = None not in (mine, payload) and mine != payload
            self.decided[key_hash] = KeyDecision(verdict, other_payload=differs)
        return _Step.DECIDED
