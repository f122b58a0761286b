"""Several runs over common keys, interleaved at random in every atomic step of a real ledger.

Drivers crash and are started again, are started twice, fence each other, meet less input than the attempt before, leave
zombie tasks behind, lose their leases, are aborted by a person who saw no published output, and die for good
while OPEN. In the end each key of a living run must have been published by exactly one run, and each committed run have
published what it owns. One seed is one history (with a real store's clock, nearly).
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from idempotent.adapters.spark.ledger import RunLedger, RunState
from idempotent.adapters.spark.ledger.run_claims import RowVerdict, RunClaims
from idempotent.adapters.spark.ledger.runs import RunRef
from idempotent.adapters.spark.ledger.store import RunStore
from idempotent.errors import (
    RunConflictError,
    RunFencedError,
    RunInputChangedError,
    StoreBusyError,
    UnpublishedClaimsError,
)

STEPS = {
    "newest",
    "find",
    "rows",
    "count_owned",
    "insert_run",
    "change_run",
    "insert_owned",
    "read_owned",
    "steal",
}
RUNS, KEYS, MOST_STEPS = 3, 8, 20_000
CRASH, DIE, ZOMBIE, TWIN, TAKEOVER, LESS, PATIENCE, ABORT = 0.02, 0.008, 0.3, 0.006, 0.3, 0.3, 300, 0.5
DONE, DUPLICATE, LOST, STUCK, UNSTABLE, DISOWNED = "ok", "DUPLICATE", "LOST", "STUCK", "UNSTABLE", "DISOWNED"


class Crashed(BaseException):
    """The process is killed here."""


class SteppedStore:
    """A store with a step before each of its calls, for others to act in between."""

    def __init__(self, store: RunStore, step: Callable[[], None]) -> None:
        self._store = store
        self._step = step

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in STEPS:
            return found

        def call(*arguments: Any) -> Any:
            self._step()
            return found(*arguments)

        return call


@dataclass(eq=False)
class Actor:
    """A thread that runs only when it has the baton."""

    run_id: str
    zombie: bool
    baton: threading.Lock = field(default_factory=threading.Lock)
    crash: bool = False
    dead: bool = False
    ref: RunRef | None = None


class History:
    """One interleaving.

    Args:
        seed: of all its choices.
        store: that the runs share; other histories may use it too.
        lease_s: of a run, by chance.
        pass_time: called at each step.
        rules: RunLedger, or a wrong one.
        claims: RunClaims, or a wrong one.
        again: how often the keys are evaluated a second time under PREPARED, as a lazy write does.
    """

    def __init__(
        self,
        seed: int,
        store: RunStore,
        *,
        rules: type[RunLedger] = RunLedger,
        lease_s: Callable[[random.Random], float],
        pass_time: Callable[[random.Random], None] = lambda _: None,
        claims: type[RunClaims] = RunClaims,
        again: float = 0.5,
    ) -> None:
        self.chance = random.Random(seed)
        self.consumer = f"model-{seed}"
        self.ledger = rules(
            SteppedStore(store, self.step), sleep=lambda _: self.step(), monotonic=lambda: self.steps
        )
        self.onlooker = rules(store)
        self.lease_s = lease_s
        self.pass_time = pass_time
        self.claims = claims
        self.again = again
        self.steps = 0
        self.published: dict[tuple[str, int], set[int]] = {}
        self.unstable = False
        self.failed: list[BaseException] = []
        self.over = threading.Event()
        self.inputs = {
            f"r{number}": sorted(self.chance.sample(range(KEYS), self.chance.randint(3, KEYS)))
            for number in range(RUNS)
        }
        # What every attempt meets: an attempt may have less input than another, and publishes less.
        self.core = {
            run_id: keys if self.chance.random() > LESS else self.chance.sample(keys, len(keys) - 1)
            for run_id, keys in self.inputs.items()
        }
        self.live: list[Actor] = []
        self.gone: set[str] = set()
        self.now: Actor | None = None

    def play(self) -> str:
        for run_id in self.inputs:
            self.start(Actor(run_id, zombie=False))
        self.pass_on(self.chance.choice(self.live))
        assert self.over.wait(150), "the history does not end"
        if self.failed:
            raise self.failed[0]
        if self.steps >= MOST_STEPS:
            return STUCK
        if self.unstable:
            return UNSTABLE
        count = Counter(key for keys in self.published.values() for key in keys)
        if any(times > 1 for times in count.values()):
            return DUPLICATE
        if any(self.disowned(run_id) for run_id, _ in self.published):
            return DISOWNED
        needed = {key for run_id, keys in self.core.items() if run_id not in self.gone for key in keys}
        return LOST if needed - set(count) else DONE

    def disowned(self, run_id: str) -> bool:
        """Whether the run has claims that count, of keys that it did not publish, or the other way round."""
        row = self.onlooker.store.newest(self.consumer, run_id)
        assert row is not None
        owners = self.onlooker.claim(row.ref, list(map(self.key_hash, range(KEYS))), insert=False)
        counted = {
            key
            for key, owner in enumerate(owners)
            if owner is not None and owner.token == row.ref.token and row.counts(owner.mark)
        }
        return row.state is RunState.COMMITTED and counted != self.published[run_id, row.ref.generation]

    def start(self, actor: Actor) -> None:
        actor.baton.acquire()
        self.live.append(actor)
        threading.Thread(target=self.life, args=(actor,), daemon=True).start()

    def life(self, actor: Actor) -> None:
        actor.baton.acquire()
        try:
            while not actor.dead and self.steps < MOST_STEPS:
                try:
                    self.zombie_task(actor) if actor.zombie else self.driver(actor)
                    break
                except (Crashed, UnpublishedClaimsError, StoreBusyError):
                    # A straggler of the attempt has claimed what its driver did not meet: another attempt frees that.
                    continue
                except RunInputChangedError:
                    # A straggler may have rows that its driver did not meet.
                    self.unstable |= not actor.zombie
                    break
                except (RunFencedError, RunConflictError) as error:
                    if actor.zombie or ("taken over" in str(error) and self.has_twin(actor)):
                        break
        except BaseException as error:
            self.failed.append(error)
        self.live.remove(actor)
        if self.live and not self.failed:
            self.pass_on(self.chance.choice(self.live))
        else:
            self.over.set()

    def driver(self, actor: Actor) -> None:
        ledger = self.ledger
        row = ledger.begin(
            self.consumer,
            actor.run_id,
            lease_s=self.lease_s(self.chance),
            fingerprint=b"input",
            wait_s=PATIENCE,
            takeover=self.chance.random() < TAKEOVER,
        )
        actor.ref = row.ref
        if row.state is RunState.COMMITTED:
            return
        if row.state is RunState.PREPARED and self.may_abort(actor) and self.chance.random() < ABORT:
            # While the person decides, another driver may begin the run again, which fences the person's abort.
            if self.chance.random() < ABORT:
                self.start(Actor(actor.run_id, zombie=False))
            for _ in range(self.chance.randrange(10)):
                self.step()
            ledger.abort(row.ref, unpublished=True)
            raise Crashed
        mine = set(row.manifest or b"")
        if row.state is RunState.OPEN:
            keys = [
                key for key in self.inputs[actor.run_id]
                if key in self.core[actor.run_id] or self.chance.random() < 0.5
            ]  # fmt: skip
            mine = self.evaluate(row.ref, keys)
            ledger.prepare(row.ref, rows=len(mine), manifest=bytes(sorted(mine)))
            if self.chance.random() < self.again:
                self.unstable |= self.evaluate(row.ref, keys) != mine
        self.step()
        self.published[actor.run_id, row.ref.generation] = mine
        self.step()
        ledger.commit(row.ref)

    def zombie_task(self, actor: Actor) -> None:
        """A task of a driver that is gone: it goes on to claim, and what it emits goes nowhere."""
        assert actor.ref is not None
        self.evaluate(actor.ref, self.inputs[actor.run_id])

    def evaluate(self, ref: RunRef, keys: list[int]) -> set[int]:
        claims = self.claims(self.ledger, ref, timeout_s=PATIENCE)
        shuffled = self.chance.sample(keys, len(keys))
        size = self.chance.randint(1, len(keys))
        mine: set[int] = set()
        for start in range(0, len(keys), size):
            part = shuffled[start : start + size]
            verdicts = claims.decide([self.key_hash(key) for key in part])
            mine.update(key for key, verdict in zip(part, verdicts, strict=True) if verdict is RowVerdict.NEW)
        return mine

    def key_hash(self, key: int) -> bytes:
        return hashlib.blake2b(f"{self.consumer}/{key}".encode(), digest_size=20).digest()

    def step(self) -> None:
        """Let any actor act, and let time pass. The thread that returns may have been killed meanwhile."""
        actor = self.now
        assert actor is not None
        self.steps += 1
        self.pass_time(self.chance)
        if self.steps >= MOST_STEPS:
            raise Crashed
        self.pass_on(self.chance.choice(self.live), actor)
        if actor.zombie:
            return
        if self.steps < MOST_STEPS // 10 and self.chance.random() < TWIN:
            self.start(Actor(actor.run_id, zombie=False))
        if len(self.gone) < RUNS - 1 and self.chance.random() < DIE and self.may_die(actor):
            actor.dead = True
            if not self.has_twin(actor):
                self.gone.add(actor.run_id)
            raise Crashed
        if self.steps < MOST_STEPS // 10 and self.chance.random() < CRASH:
            if actor.ref is not None and self.chance.random() < ZOMBIE:
                self.start(Actor(actor.run_id, zombie=True, ref=actor.ref))
            raise Crashed

    def pass_on(self, to: Actor, of: Actor | None = None) -> None:
        if to is of:
            return
        self.now = to
        to.baton.release()
        if of is not None:
            of.baton.acquire()

    def has_twin(self, actor: Actor) -> bool:
        """Whether another driver has the actor's run, and will finish it."""
        return any(
            each.run_id == actor.run_id and not each.zombie and each is not actor for each in self.live
        )

    def may_abort(self, actor: Actor) -> bool:
        """Whether nothing of the actor's run is published, and no other driver may be on its way to publish it."""
        return all(run_id != actor.run_id for run_id, _ in self.published) and not self.has_twin(actor)

    def may_die(self, actor: Actor) -> bool:
        """Whether the actor's run may stay unfinished: a PREPARED one may not."""
        row = self.onlooker.store.newest(self.consumer, actor.run_id)
        return row is None or row.state in (RunState.OPEN, RunState.ABORTED)
