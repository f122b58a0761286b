"""Unrecorded: completions and releases that the store did not record. They happened, so they are retried."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from idempotent.checkers.side_calls import RepeatingThread
from idempotent.claims import Claim, ClaimRequest, Completion, Decision, Failure, Verdict
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


@value
class Release:
    """A claim to free, and the failure to count, if any."""

    claim: Claim
    failure: Failure | None = None


Step: TypeAlias = "Completion | Release"


class Unrecorded:
    """The steps to retry: every second in a background thread, and before this process's next claim of the key.

    The leases of completions are renewed meanwhile, so that no other process repeats the effect.

    Args:
        record: records one step in the store; False: another owner has the key.
        reconnect: forgets the store's idle connections.
        count: counts a completion of a key that another owner has.

    Attributes:
        steps: by the hash of their key. Each message looks whether there are any, which a call would take longer for.
    """

    def __init__(
        self, record: Callable[[Step], bool], reconnect: Callable[[], object], count: CountEvent
    ) -> None:
        self._record = record
        self._reconnect = reconnect
        self._count = count
        self.steps: dict[bytes, Step] = {}
        self._lock: Final = free_in_child(threading.Lock())
        self._repeating: RepeatingThread | None = None
        self._refused = LogThrottle()
        self._generation = generation.number

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def releases(self) -> int:
        """How many of them are releases: a handler raised, or never ran. The others are completions of effects."""
        return sum(isinstance(step, Release) for step in list(self.steps.values()))

    def remember(self, steps: Sequence[Step]) -> None:
        """Keep steps that the store did not record."""
        if self._generation != generation.number:
            self._forget_parent()
        with self._lock:
            for step in steps:
                if step.claim.key is not NO_KEY:
                    self.steps[step.claim.key.hash] = step
            if self._repeating is None and self.steps:
                self._repeating = RepeatingThread(self._round, "idempotent-unrecorded", _RETRY_S)
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

    def settle(self, request: ClaimRequest) -> bool:
        """Retry the step of this key, if one is kept. False: the store still did not record it."""
        step = self.steps.get(request.key.hash)
        return step is None or self._offer(step)

    def offer_all(self, longest_s: float = float("inf")) -> None:
        """Retry every step, for about this many seconds. A failure is logged."""
        until = time.monotonic() + longest_s
        for step in list(self.steps.values()):
            if time.monotonic() >= until:
                return
            self._offer(step)

    def close(self) -> None:
        """Retry every step once more, for a few seconds at most, and stop the thread."""
        self.offer_all(_CLOSE_S)
        with self._lock:
            if self._repeating is not None:
                self._repeating.stop()
                self._repeating = None

    def _round(self) -> bool:
        self.offer_all()
        with self._lock:
            is_closed = self._repeating is None
            if not self.steps:
                self._repeating = None  # the next one that is remembered starts new ones
        if is_closed:  # a connection that was made for this would stay open
            self._reconnect()
        return bool(self.steps)

    def _offer(self, step: Step) -> bool:
        """Retry a step. Returns whether the store answered."""
        key = step.claim.key
        try:
            owned = self._record(step)
        except StoreError as error:
            more = self._refused.take()
            if more is None:
                return False
            extra = {**about_key(key), "error": str(error), "more": more}
            if isinstance(step, Completion):
                log.warning("completion_not_recorded", extra=extra)
            else:
                log.warning("release_not_recorded", extra=extra)
            return False
        with self._lock:
            if self.steps.get(key.hash) is step:
                del self.steps[key.hash]
        if not owned and isinstance(step, Completion):
            self._count(key.consumer, Event.COMPLETION_LOST)
            log.error("completion_lost", extra={**about_key(key), "fence": step.claim.fence})
        return True

    def _forget_parent(self) -> None:
        # After fork() the thread is gone and the steps are the parent's.
        self.steps = {}
        self._repeating = None
        self._generation = generation.number


def not_recorded_yet() -> Decision:
    """The answer to a claim of a key with an unrecorded step: the handler must not run again before it is recorded."""
    return Decision(
        Verdict.IN_PROGRESS,
        retry_after_s=_RETRY_S,
        reason="this process ran it, and the store has not recorded what came of it",
    )
