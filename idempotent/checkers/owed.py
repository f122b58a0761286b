"""OwedSteps: what this process owes its store, which did not answer: it is remembered, and offered again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from idempotent.checkers.repeating import RepeatingThread
from idempotent.claims import Claim, Completion, Decision, Failure, Verdict
from idempotent.errors import StoreError
from idempotent.forks import free_in_child, generation
from idempotent.keys import NO_KEY
from idempotent.logs import EventLog
from idempotent.observe.counting import CountEvent
from idempotent.observe.events import Event
from idempotent.observe.log_lines import LogThrottle, about_key
from idempotent.values import value

log = EventLog(__name__)

_RETRY_S: Final = 1.0
_CLOSE_S: Final = 10.0
# Beyond these, a key whose claim got no answer is free when its lease ends. Each takes about half a kilobyte.
_MOST_UNANSWERED: Final = 10_000


@value
class Release:
    """A claim to free, and the failure to count, if any."""

    claim: Claim
    failure: Failure | None = None


@value
class Unanswered:
    """A claim that may have been made: its answer was lost, so no handler runs for it, and it must not last."""

    claim: Claim


@value
class RunEnd:
    """The end of a run of which the store keeps a note that it began.

    Attributes:
        claim: of the key.
        record: tells the store. It may be called again after a lost answer.
    """

    claim: Claim
    record: Callable[[], object]


Step: TypeAlias = "Completion | Release | Unanswered | RunEnd"


class OwedSteps:
    """The steps to offer again: every second in a background thread, and before this process's next claim of the key.

    The leases of completions are renewed meanwhile, so that no other process repeats the effect.

    Args:
        record: records one completion or release; False: another owner has the key.
        free: frees those of some claims that were made.
        reconnect: forgets the store's idle connections.
        count: counts a completion of a key that another owner has.

    Attributes:
        steps: by the hash of their key. Each message looks whether there are any, which a call would take longer for.
    """

    def __init__(
        self,
        record: Callable[[Completion | Release], bool],
        free: Callable[[Sequence[Claim]], object],
        reconnect: Callable[[], object],
        count: CountEvent,
    ) -> None:
        self._record = record
        self._free = free
        self._reconnect = reconnect
        self._count = count
        self.steps: dict[bytes, Step] = {}
        self._lock: Final = free_in_child(threading.Lock())
        self._repeating = RepeatingThread(self._round, "idempotent-owed", _RETRY_S)
        self._refused = LogThrottle()
        self._generation = generation.number

    def number(self, *kinds: type) -> int:
        """How many of them are of these kinds."""
        return sum(isinstance(step, kinds) for step in list(self.steps.values()))

    @property
    def claims(self) -> set[Claim]:
        """Their claims."""
        return {step.claim for step in list(self.steps.values())}

    def remember(self, steps: Sequence[Step]) -> None:
        """Keep steps that the store did not record."""
        if self._generation != generation.number:
            self._forget_parent()
        with self._lock:
            for step in steps:
                if step.claim.key is NO_KEY:
                    continue
                if not isinstance(step, Unanswered):
                    self.steps[step.claim.key.hash] = step
                elif len(self.steps) < _MOST_UNANSWERED:
                    # An owed completion or release of this key stays: while it is owed, no other claim can have got it.
                    self.steps.setdefault(step.claim.key.hash, step)
            if self.steps:
                # Where the system starts no more threads, the next claim of the key offers it.
                with suppress(RuntimeError):
                    self._repeating.start()
        completions = sum(isinstance(step, Completion) for step in steps)
        if completions:
            log.warning("completion_not_recorded", extra={"keys": completions})

    def forget(self, completions: Sequence[Completion]) -> None:
        """Do not retry completions that were recorded by another call."""
        with self._lock:
            for completion in completions:
                key = completion.claim.key
                kept = self.steps.get(key.hash)
                if kept and kept.claim is completion.claim:
                    del self.steps[key.hash]

    def settle(self, hashed: bytes) -> bool:
        """Offer the step of this key, if one is kept. False: the store still did not record what came of a run.

        Raises:
            StoreError: it did not record a step without an effect. The claim would fail as well.
        """
        step = self.steps.get(hashed)
        if step is None:
            return True
        error = self._offer(step)
        if error is not None and isinstance(step, (Unanswered, RunEnd)):
            raise error
        return error is None

    def offer_all(self, longest_s: float = float("inf")) -> None:
        """Offer every step, for about this many seconds. A failure is logged."""
        until = time.monotonic() + longest_s
        steps = list(self.steps.values())
        for step in steps:
            if time.monotonic() >= until:
                return
            if not isinstance(step, Unanswered):
                self._offer(step)
        unanswered = [step for step in steps if isinstance(step, Unanswered)]
        if unanswered and time.monotonic() < until:
            self._offer(*unanswered)

    def close(self) -> None:
        """Offer every step once more, for a few seconds at most, and stop the thread."""
        self.offer_all(_CLOSE_S)
        self._repeating.stop()

    def _round(self) -> None:
        self.offer_all()
        if not self._repeating.runs:  # closed meanwhile: a connection that was made for this would stay open
            self._reconnect()
        with self._lock:
            if not self.steps:
                self._repeating.stop()  # the next one that is remembered starts it again

    def _offer(self, step: Step, *more: Unanswered) -> StoreError | None:
        """Offer a step, or several claims without an answer together. Returns why the store did not record it."""
        owned = True
        try:
            match step:
                case Unanswered():
                    self._free([each.claim for each in (step, *more)])
                case RunEnd():
                    step.record()
                case _:
                    owned = self._record(step)
        except StoreError as error:
            self._log(step, error)
            return error
        with self._lock:
            for each in (step, *more):
                if self.steps.get(each.claim.key.hash) is each:
                    del self.steps[each.claim.key.hash]
        if not owned and isinstance(step, Completion):
            key = step.claim.key
            self._count(key.consumer, Event.COMPLETION_LOST)
            log.error("completion_lost", extra={**about_key(key), "fence": step.claim.fence})
        return None

    def _log(self, step: Step, error: StoreError) -> None:
        more = self._refused.take()
        if more is None:
            return
        extra = {**about_key(step.claim.key), "error": str(error), "more": more}
        match step:
            case Completion():
                log.warning("completion_not_recorded", extra=extra)
            case RunEnd():
                log.warning("run_end_not_recorded", extra=extra)
            case _:
                log.warning("release_not_recorded", extra=extra)

    def _forget_parent(self) -> None:
        # After fork() the steps are the parent's.
        self.steps = {}
        self._generation = generation.number


def not_recorded_yet() -> Decision:
    """The answer to a claim of a key with an owed step: the handler must not run again before it is recorded."""
    return Decision(
        Verdict.IN_PROGRESS,
        retry_after_s=_RETRY_S,
        reason="this process ran it, and the store has not recorded what came of it",
    )
