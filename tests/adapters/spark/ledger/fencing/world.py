"""The world of the fencing model: what the store and the file system hold, and the atomic steps on them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

OPEN, PREPARED, COMMITTED, ABORTED = "OPEN", "PREPARED", "COMMITTED", "ABORTED"
DUPLICATE, LOST, UNOWNED, MISSED = "DUPLICATE", "LOST", "UNOWNED", "MISSED"
Row = tuple[int, int]
"""A frame and a key."""


@dataclass(frozen=True)
class Rules:
    """The rules, each of which may be removed.

    Attributes:
        waits: `begin` waits for a live lease.
        fences_claims, fences_prepare, fences_commit: conditional on the newest epoch.
        atomic: a claim and its check are one step.
        own_folder: each attempt stages in a folder of its own.
        frozen: what is PREPARED is not evaluated again.
        counts: PREPARE counts claims and staged rows: within its own step (atomic), before it, or not.
        marks: claims of earlier attempts do not count.
        frames: of two frames with a common key one has it.
        takes_stale: what an earlier attempt claimed for another frame is taken.
        manifest: the files that were staged are listed before PREPARED; later ones are not published.
        prepared: there is a state between claiming and publishing.
        keeps_prepared: a PREPARED run is not aborted.
        publishes: by a pointer, a transaction conditional on the run (once), copies, or delete-then-write (overwrite).
    """

    waits: bool = True
    fences_claims: bool = True
    fences_prepare: bool = True
    fences_commit: bool = True
    atomic: bool = True
    own_folder: bool = True
    frozen: bool = True
    counts: str = "atomic"
    marks: bool = True
    frames: bool = True
    takes_stale: bool = True
    manifest: bool = True
    prepared: bool = True
    keeps_prepared: bool = True
    publishes: str = "pointer"


@dataclass(frozen=True)
class Run:
    generation: int
    state: str
    epoch: int
    leased: bool
    attempt: int = 0


@dataclass(frozen=True)
class Claim:
    run: str
    generation: int
    mark: int
    frame: int

    def is_of(self, run: str, generation: int) -> bool:
        return (self.run, self.generation) == (run, generation)


@dataclass
class World:
    """Runs by name; claims by key; staged and published rows."""

    rules: Rules
    keys: int
    runs: dict[str, Run] = field(default_factory=dict)
    claims: dict[int, Claim] = field(default_factory=dict)
    staged: dict[tuple[str, int, int], frozenset[Row]] = field(default_factory=dict)
    published: dict[str, frozenset[tuple[object, Row]]] = field(default_factory=dict)
    diverted: dict[tuple[str, int, int], frozenset[int]] = field(default_factory=dict)

    def counts(self, claim: Claim) -> bool:
        """Whether the claim is in committed output."""
        run = self.runs[claim.run]
        is_marked = claim.mark == run.attempt or not (self.rules.marks and self.rules.prepared)
        return run.generation == claim.generation and run.state == COMMITTED and is_marked

    def frees(self, claim: Claim) -> bool:
        """Whether the claim can never be in committed output."""
        run = self.runs[claim.run]
        if run.generation != claim.generation or run.state == ABORTED:
            return True
        return self.rules.marks and run.state in (PREPARED, COMMITTED) and claim.mark != run.attempt

    def fenced(self, name: str, generation: int, epoch: int) -> bool:
        run = self.runs[name]
        if run.generation != generation or run.state == ABORTED:
            return True
        return self.rules.fences_claims and run.epoch != epoch

    def claim(self, name: str, generation: int, epoch: int, row: Row) -> str:
        """One claim: mine, duplicate, fenced, wait, or again."""
        frame, key = row
        run, found = self.runs[name], self.claims.get(key)
        mine = found is not None and found.is_of(name, generation)
        if self.fenced(name, generation, epoch):
            return "fenced"
        if run.state != OPEN:
            if found is not None and mine and (not self.rules.frames or found.frame == frame):
                return "mine"
            return "duplicate" if found is not None and (mine or self.counts(found)) else "fenced"
        if found is None or (not mine and self.frees(found)):
            self.claims[key] = Claim(name, generation, epoch, frame)
            return "mine"
        if mine:
            same = not self.rules.frames or found.frame == frame
            if not same and not (found.mark < epoch and self.rules.takes_stale):
                return "duplicate"
            self.claims[key] = Claim(name, generation, max(found.mark, epoch), frame)
            return "mine"
        if self.counts(found):
            return "duplicate"
        other = self.runs[found.run]
        if not other.leased and (other.state == OPEN or not self.rules.keeps_prepared):
            self.runs[found.run] = replace(other, state=ABORTED)
            return "again"
        return "wait"

    def marked(self, name: str) -> int:
        """The number of claims with the mark of the run's epoch."""
        run = self.runs[name]
        return sum(
            claim.is_of(name, run.generation) and claim.mark == run.epoch for claim in self.claims.values()
        )

    def folder(self, name: str, generation: int, epoch: int) -> tuple[str, int, int]:
        return (name, generation, epoch) if self.rules.own_folder else (name, 0, 0)

    def wrong(self, due: dict[str, frozenset[int]]) -> str | None:
        """The broken promise, if one is.

        Args:
            due: by run, the keys that every attempt at it meets.
        """
        seen = Counter(key for rows in self.published.values() for _, (_, key) in rows)
        if any(times > 1 for times in seen.values()):
            return DUPLICATE
        for name, run in self.runs.items():
            if run.state != COMMITTED:
                continue
            have = {key for _, (_, key) in self.published.get(name, ())}
            own = {
                key
                for key, claim in self.claims.items()
                if claim.is_of(name, run.generation) and self.counts(claim)
            }
            if own - have:
                return LOST
            if have - own:
                return UNOWNED
            aside = self.diverted.get((name, run.generation, run.attempt), frozenset())
            for key in due[name] - have - aside:
                claim = self.claims.get(key)
                if claim is None or not self.counts(claim):
                    return MISSED
        return None
