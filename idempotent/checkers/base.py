"""AbstractIdempotentChecker: the base of every checker, ours and yours."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeVar, final

from idempotent.checkers.leases import LeaseKeeper, NoLeases
from idempotent.claims import (
    Claim,
    ClaimRequest,
    Completion,
    Decision,
    Failure,
    Guarantee,
    Released,
    Verdict,
    new_owner,
)
from idempotent.errors import ConfigurationError, IdempotentError, StoreError
from idempotent.keys import KeySpace
from idempotent.observe.counting import Event, counters
from idempotent.values import changed

C = TypeVar("C")
R = TypeVar("R")

log = logging.getLogger(__name__)

DEFAULT_LEASE_S: Final = 30.0
DEFAULT_RETENTION_S: Final = 14 * 86400
LAPSED_ERROR: Final = "the lease ended without an answer: its process died or stalled"
UNKNOWN_EFFECT: Final = "effect unknown: the lease ended without an answer; look, then resolve the key"
_UNRECORDED_RETRY_S: Final = 1.0
_GC_LEASE_KEY: Final = KeySpace("idempotent", "gc").key("leader")


class AbstractIdempotentChecker(ABC):
    """Decides which delivery runs, and records what became of it.

    Derive from it and write four hooks: `_claim`, `_complete`, `_release`, `_garbage_collect`. The `_many` hooks
    loop over them; override them for speed. `idempotent.testing.CheckerContract` proves the result.

    A hook raises `StoreError` (or a subclass) when the store does not do its part; any other exception is a bug.
    Every hook is called from several threads at once.

    Args:
        lease_s: seconds a claim stays its owner's without renewal; None: for ever (`claim_once`).
        retention_s: seconds a key is remembered, counted from its claim.

    Raises:
        ConfigurationError: a duration is not positive.
    """

    group_is_atomic: bool = False
    """Whether the claims of one `claim_many` complete together or not at all."""
    isolates: bool = False
    """Whether one handler of an atomic group can be undone without the others."""
    keeps_positions: bool = False
    """Whether messages are known by their position in a partition, not by a key."""
    remembers_done: bool = True
    """Whether a completed message is a duplicate from then on. If not, somebody else decides what is done."""

    def __init__(
        self, *, lease_s: float | None = DEFAULT_LEASE_S, retention_s: float = DEFAULT_RETENTION_S
    ) -> None:
        """Check the durations."""
        if lease_s is not None and not lease_s > 0:
            raise ConfigurationError(f"lease_s must be positive seconds or None, not {lease_s!r}")
        if not retention_s > 0:
            raise ConfigurationError(f"retention_s must be positive seconds, not {retention_s!r}")
        self.lease_s: Final = lease_s
        self.retention_s: Final = float(retention_s)
        self._keeper = NoLeases() if lease_s is None else LeaseKeeper(self._renew_and_record, lease_s)
        # Completions that the store did not take: the effect happened, so they are offered again, never re-run.
        self._unrecorded: dict[bytes, Completion] = {}

    @property
    def guarantee(self) -> Guarantee:
        """What this checker promises."""
        return Guarantee.CLAIM_ONCE if self.lease_s is None else Guarantee.LEASED

    # The hooks

    @abstractmethod
    def _claim(self, request: ClaimRequest) -> Decision:
        """Become the key's owner iff nobody is, in one atomic step.

        A free key is stored with the request's owner, status and fingerprint, a fence from the store's clock in
        microseconds, and a lease and an expiry counted from the store's clock. A key with a lapsed lease follows
        `request.on_lapsed`; taking it over adds one to its fence. (A lapsed key whose fingerprint differs is left.)
        A key that already has the request's owner is ACQUIRED again: the answer to an earlier try was lost.
        """

    @abstractmethod
    def _complete(self, completion: Completion) -> bool:
        """Make the key DONE iff the claim's owner still is its owner, lapsed or not. Returns whether it was."""

    @abstractmethod
    def _release(self, claim: Claim, failure: Failure | None) -> Released:
        """Delete the key iff it is in progress and the claim's owner still is its owner.

        With a failure, in the same atomic step: count one attempt beside the key and keep the error; if
        `failure.kills(attempts)`, make the key DEAD; else, if `failure.keep_claim`, leave it as it is.
        """

    @abstractmethod
    def _garbage_collect(self, limit: int) -> int:
        """Delete at most `limit` keys past their expiry. Returns how many.

        Never a live lease, and never a key in progress of a consumer that parks.
        """

    def _claim_many(self, requests: Sequence[ClaimRequest]) -> list[Decision]:
        """`_claim` for different keys; decisions in the order of the requests.

        A group's requests are made while they are read (see `Streamed`): a checker that sends some of them before it
        reads on lets the store work meanwhile.
        """
        return [self._claim(request) for request in requests]

    def _complete_many(self, completions: Sequence[Completion]) -> list[bool]:
        return [self._complete(completion) for completion in completions]

    def _release_many(self, releases: Sequence[tuple[Claim, Failure | None]]) -> list[Released]:
        return [self._release(claim, failure) for claim, failure in releases]

    def _renew_many(self, claims: Sequence[Claim]) -> list[bool]:
        """Let the leases of owned claims end `lease_s` from now, on the store's clock. True: still owned.

        The default renews nothing, which suits a checker whose claims do not lapse.
        """
        return [True] * len(claims)

    def close(self) -> None:
        """Give up connections and stop the background thread. Idempotent."""
        self._record_all()
        self._keeper.close()

    # What consumers call

    @final
    def claim(self, request: ClaimRequest) -> Decision:
        """Ask for one key. See `Decision` for the answers.

        Raises:
            StoreError: the store did not answer; nothing is known.
        """
        if self._unrecorded and not self._record_again(request):
            return _effect_not_recorded()
        decision = self._only_store_errors(self._claim_and_count, request)
        if decision.claim is not None:
            self._keeper.hold((decision.claim,))
        return decision

    @final
    def claim_many(self, requests: Sequence[ClaimRequest]) -> list[Decision]:
        """Ask for many different keys at once; decisions in the order of the requests.

        Raises:
            StoreError: the store did not answer; nothing is known of any.
        """
        free = requests
        if self._unrecorded:
            free = [request for request in requests if self._record_again(request)]
        decisions = self._only_store_errors(self._claim_many, free) if free else []
        self._keeper.hold([decision.claim for decision in decisions if decision.claim is not None])
        if free is requests:
            return decisions
        by_hash = {request.key.hash: decision for request, decision in zip(free, decisions, strict=True)}
        return [by_hash.get(request.key.hash) or _effect_not_recorded() for request in requests]

    @final
    def count_lapse(self, decision: Decision, max_attempts: int) -> Decision:
        """Count the lapse of a claim that was made alone as an attempt: its process died or stalled.

        Returns the decision as it is, or DEAD when attempts are used up now.

        Raises:
            StoreError: not counted.
        """
        assert decision.claim is not None
        lapse = Failure(LAPSED_ERROR, max_attempts, keep_claim=True)
        released = self._only_store_errors(self._release, decision.claim, lapse)
        if released.owned and not released.dead:
            return decision
        self._keeper.drop([decision.claim])
        if released.dead:
            return Decision(Verdict.DEAD, reason=LAPSED_ERROR)
        return Decision(Verdict.IN_PROGRESS)

    @final
    def complete(self, claim: Claim, result: bytes | None = None) -> bool:
        """Record that the claim's effect happened; False when somebody else owns the key by now.

        Raises:
            StoreError: not recorded. This process keeps the lease and goes on trying, in the background and at the
                key's next claim here, before anything runs again.
        """
        if claim.empty:
            return True
        completion = Completion(claim, result)
        self._keeper.drop((claim,))
        return self._recorded(self._complete, completion, (completion,))

    @final
    def complete_many(self, completions: Sequence[Completion]) -> list[bool]:
        """`complete` for many claims of different keys at once.

        Raises:
            StoreError: nothing is known of any; see `complete`.
        """
        claims = [completion.claim for completion in completions]
        if _all_empty(claims):
            return [True] * len(completions)
        self._keeper.drop(claims)
        if len(completions) == 1:
            return [self._recorded(self._complete, completions[0], completions)]
        return self._recorded(self._complete_many, completions, completions)

    @final
    def release(self, claim: Claim, failure: Failure | None = None) -> Released:
        """Free the key; with a failure, count an attempt, and make the key DEAD when they are used up.

        Raises:
            StoreError: not freed; the claim stays until its lease ends.
        """
        return self.release_many([(claim, failure)])[0]

    @final
    def release_many(self, releases: Sequence[tuple[Claim, Failure | None]]) -> list[Released]:
        """`release` for many claims of different keys at once.

        Raises:
            StoreError: nothing is known of any; see `release`.
        """
        if _all_empty([claim for claim, _ in releases]):
            return [Released(owned=True)] * len(releases)
        self._keeper.drop([claim for claim, _ in releases])
        if len(releases) == 1:
            return [self._only_store_errors(self._release, *releases[0])]
        return self._only_store_errors(self._release_many, releases)

    @final
    def abandon(self, claim: Claim) -> None:
        """Neither complete nor release the key: let its lease end, or its transaction roll back."""
        self._keeper.drop([claim])
        if claim.unit is not None:
            claim.unit.close()

    @final
    def garbage_collect(
        self, *, batch_size: int = 1000, on_batch: Callable[[int], object] | None = None
    ) -> int:
        """Delete every key past its expiry, in bounded batches. Returns how many.

        Args:
            batch_size: keys a batch.
            on_batch: called after each batch with the number deleted so far.

        Raises:
            ConfigurationError: `batch_size` is not positive.
            StoreError: the store did not answer; what was deleted stays deleted.
        """
        if batch_size < 1:
            raise ConfigurationError(f"batch_size must be positive, not {batch_size}")
        deleted = 0
        while True:
            batch = self._garbage_collect(batch_size)
            deleted += batch
            if on_batch and batch:
                on_batch(deleted)
            if batch < batch_size:
                return deleted

    @final
    def garbage_collect_alone(self, *, batch_size: int = 1000) -> int | None:
        """`garbage_collect`, unless another process is at it now: then None. The lock is a key in the store.

        Raises:
            StoreError: the store did not answer.
        """
        leader = self._gc_leader
        if leader.lease_s is None:
            return self.garbage_collect(batch_size=batch_size)  # a lock that never lapses is worse than none
        claim = leader.claim(ClaimRequest(_GC_LEASE_KEY)).claim
        if claim is None:
            return None
        try:
            return self.garbage_collect(batch_size=batch_size)
        finally:
            leader.release(claim)

    @property
    def _gc_leader(self) -> AbstractIdempotentChecker:
        """The checker in whose store the lock is."""
        return self

    # What transactional checkers change

    def claim_nothing(self) -> Claim:
        """A claim of no key, for a handler that is allowed to run without one."""
        return Claim(None)

    def ignore(self, request: ClaimRequest, claim: Claim) -> None:
        """Record the key although its handler raised, an exception that the consumer declares harmless.

        Raises:
            StoreError: not recorded.
        """
        del request
        self.complete(claim)

    def forget(self, claim: Claim) -> None:
        """Take the key of a failed handler out of a group that goes on without it."""
        del claim

    def isolated(self, claim: Claim, takes: type | None) -> AbstractContextManager[object]:
        """Contain what one handler of an atomic group does, where `isolates` says that the checker can."""
        del claim, takes
        return nullcontext()

    def is_transient(self, claim: Claim, error: Exception) -> bool:
        """Whether the handler's exception is the store's fault and the claim is worth a fresh try."""
        del claim, error
        return False

    def handler_argument(self, claim: Claim, kind: type) -> Any:  # noqa: ARG002 - for those that have one
        """The session or connection a handler takes as its second parameter.

        Raises:
            ConfigurationError: this checker has none.
        """
        raise ConfigurationError(f"{type(self).__name__} has no {kind.__name__} to hand to a handler")

    # Private

    def _only_store_errors(self, hook: Callable[..., R], *arguments: Any) -> R:
        """Call a hook. Whatever else it raises is a StoreError: a bug in a checker must not become a verdict."""
        try:
            return hook(*arguments)
        except IdempotentError:
            raise
        except Exception as error:
            raise StoreError(f"a bug in {type(self).__name__}: {type(error).__name__}: {error}") from error

    def _claim_and_count(self, request: ClaimRequest) -> Decision:
        decision = self._claim(request)
        if decision.alone and request.max_attempts is not None:
            return self.count_lapse(decision, request.max_attempts)
        return decision

    def _recorded(self, hook: Callable[[C], R], argument: C, completions: Sequence[Completion]) -> R:
        """Let a hook record that these effects happened, and remember them if the store does not."""
        try:
            # What a commit raises may be the handler's failure.
            return hook(argument) if self.group_is_atomic else self._only_store_errors(hook, argument)
        except StoreError:
            self._remember_unrecorded(completions)
            raise

    def _remember_unrecorded(self, completions: Sequence[Completion]) -> None:
        if self.group_is_atomic:
            return
        for completion in completions:
            if completion.claim.key:
                self._unrecorded[completion.claim.key.hash] = completion
        # The lease is renewed meanwhile: nobody may run again what has happened.
        self._keeper.hold([completion.claim for completion in completions])
        log.warning("completion_not_recorded", extra={"keys": len(completions)})

    def _record_again(self, request: ClaimRequest) -> bool:
        """Offer the store a completion of this key that it did not take. False: it still does not."""
        completion = self._unrecorded.get(request.key.hash)
        return completion is None or self._record(completion)

    def _record(self, completion: Completion) -> bool:
        """Offer the store a completion that it did not take; whether it answered."""
        claim = completion.claim
        assert claim.key is not None
        try:
            owned = self._only_store_errors(self._complete, completion)
        except StoreError as error:
            log.warning("completion_not_recorded", extra={"key": str(claim.key), "error": str(error)})
            return False
        if self._unrecorded.get(claim.key.hash) is completion:
            del self._unrecorded[claim.key.hash]
        self._keeper.drop([claim])
        if not owned:
            counters.add(claim.key.consumer, Event.COMPLETION_LOST)
            log.error("completion_lost", extra={"key": str(claim.key), "fence": claim.fence})
        return True

    def _record_all(self) -> None:
        for completion in list(self._unrecorded.values()):
            self._record(completion)

    def _renew_and_record(self, claims: Sequence[Claim]) -> list[bool]:
        """The lease keeper's round: renew all, and then offer what the store did not take before."""
        kept = self._renew_many(claims)
        self._record_all()
        return kept


def _all_empty(claims: Sequence[Claim]) -> bool:
    # One that is not empty says it all, and it is mostly the first.
    return not claims or (claims[0].empty and all(claim.empty for claim in claims))


def anew(request: ClaimRequest) -> ClaimRequest:
    """The same request with a new owner token."""
    return changed(request, owner=new_owner())


def _effect_not_recorded() -> Decision:
    """The effect happened in this process and the store has not heard of it: nobody may run it again."""
    return Decision(Verdict.IN_PROGRESS, retry_after_s=_UNRECORDED_RETRY_S)
