"""ClaimDesk: the claim protocol around a checker's hooks: leases, lapses and unrecorded completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from idempotent.checkers.hooks import CheckerHooks
from idempotent.checkers.leases import LeaseKeeper, NoLeases
from idempotent.checkers.unrecorded import Unrecorded, effect_not_recorded
from idempotent.claims import (
    LAPSED_ERROR,
    Claim,
    ClaimRequest,
    Completion,
    Decision,
    Failure,
    Released,
    Verdict,
)
from idempotent.errors import IdempotentError, StoreError

C = TypeVar("C")
R = TypeVar("R")


class ClaimDesk:
    """Claims, completes and releases the keys of one checker for its consumers.

    Args:
        hooks: the checker.

    Attributes:
        hooks: carries out each step. Tests may replace it with a wrapper.
    """

    def __init__(self, hooks: CheckerHooks) -> None:
        self.hooks = hooks
        self._keeper: Final = (
            NoLeases() if hooks.lease_s is None else LeaseKeeper(self._renew_and_record, hooks.lease_s)
        )
        self._unrecorded: Final = Unrecorded(self._complete_late)

    def claim(self, request: ClaimRequest) -> Decision:
        """Claim one key. `Decision` documents the answers.

        Raises:
            StoreError: the store did not answer; whether the key was claimed is unknown.
        """
        if self._unrecorded and not self._unrecorded.settle(request):
            return effect_not_recorded()
        try:
            decision = self.hooks._claim(request)
            if decision.alone and request.max_attempts is not None:
                decision = self.count_lapse(decision, request.max_attempts)
        except IdempotentError:
            raise
        except Exception as error:
            raise self._bug(error) from error
        if decision.claim is not None:
            self._keeper.hold((decision.claim,))
        return decision

    def claim_many(self, requests: Sequence[ClaimRequest]) -> list[Decision]:
        """Claim many different keys together; decisions in the order of the requests.

        Raises:
            StoreError: the store did not answer; which keys were claimed is unknown.
        """
        free = requests
        if self._unrecorded:
            free = [request for request in requests if self._unrecorded.settle(request)]
        decisions = self._only_store_errors(self.hooks._claim_many, free) if free else []
        self._keeper.hold([decision.claim for decision in decisions if decision.claim is not None])
        if free is requests:
            return decisions
        by_hash = {request.key.hash: decision for request, decision in zip(free, decisions, strict=True)}
        return [by_hash.get(request.key.hash) or effect_not_recorded() for request in requests]

    def count_lapse(self, decision: Decision, max_attempts: int) -> Decision:
        """Count the lapse of a claim made alone as an attempt: its process died or stalled.

        Returns the same decision; DEAD if the attempts are used up, or IN_PROGRESS if another delivery has the key.

        Raises:
            StoreError: the store did not count it.
        """
        assert decision.claim is not None
        lapse = Failure(LAPSED_ERROR, max_attempts, keep_claim=True)
        released = self._only_store_errors(self.hooks._release, decision.claim, lapse)
        if released.owned and not released.dead:
            return decision
        self._keeper.drop([decision.claim])
        if released.dead:
            return Decision(Verdict.DEAD, reason=LAPSED_ERROR)
        return Decision(Verdict.IN_PROGRESS)

    def complete(self, claim: Claim, result: bytes | None = None) -> bool:
        """Record that the claim's effect happened; False: another owner has the key.

        Raises:
            StoreError: the store did not record it. This process keeps the lease and retries, in the background and
                before its next claim of the key.
        """
        if claim.empty:
            return True
        completion = Completion(claim, result)
        self._keeper.drop((claim,))
        return self._recorded(self.hooks._complete, completion, (completion,))

    def complete_many(self, completions: Sequence[Completion]) -> list[bool]:
        """`complete` for claims of different keys together.

        Raises:
            StoreError: the store did not answer; which were recorded is unknown. See `complete`.
        """
        claims = [completion.claim for completion in completions]
        if _all_empty(claims):
            return [True] * len(completions)
        self._keeper.drop(claims)
        if len(completions) == 1:
            return [self._recorded(self.hooks._complete, completions[0], completions)]
        return self._recorded(self.hooks._complete_many, completions, completions)

    def release(self, claim: Claim, failure: Failure | None = None) -> Released:
        """Free the key; with a failure, count an attempt, and make the key DEAD if its attempts are used up.

        Raises:
            StoreError: the store did not free it; the claim stays until its lease ends.
        """
        return self.release_many([(claim, failure)])[0]

    def release_many(self, releases: Sequence[tuple[Claim, Failure | None]]) -> list[Released]:
        """`release` for claims of different keys together.

        Raises:
            StoreError: the store did not answer; which were freed is unknown. See `release`.
        """
        if _all_empty([claim for claim, _ in releases]):
            return [Released(owned=True)] * len(releases)
        self._keeper.drop([claim for claim, _ in releases])
        if len(releases) == 1:
            return [self._only_store_errors(self.hooks._release, *releases[0])]
        return self._only_store_errors(self.hooks._release_many, releases)

    def abandon(self, claim: Claim) -> None:
        """Neither complete nor release the key: let its lease end, or its transaction roll back."""
        self._keeper.drop([claim])
        if claim.unit is not None:
            claim.unit.close()

    def close(self) -> None:
        """Retry unrecorded completions once, and stop the background thread. Idempotent."""
        self._unrecorded.offer_all()
        self._keeper.close()

    def _only_store_errors(self, hook: Callable[..., R], *arguments: Any) -> R:
        """Call a hook. An unexpected exception becomes a StoreError: a bug in a checker must not become a verdict."""
        try:
            return hook(*arguments)
        except IdempotentError:
            raise
        except Exception as error:
            raise self._bug(error) from error

    def _bug(self, error: Exception) -> StoreError:
        return StoreError(f"a bug in {type(self.hooks).__name__}: {type(error).__name__}: {error}")

    def _recorded(self, hook: Callable[[C], R], argument: C, completions: Sequence[Completion]) -> R:
        """Call a hook that records these completions; remember them if the store did not record them."""
        try:
            return hook(argument)
        except Exception as error:
            if self.hooks.group_is_atomic:
                raise  # an exception of COMMIT may be the handler's failure
            failed = error if isinstance(error, IdempotentError) else self._bug(error)
            if isinstance(failed, StoreError):
                self._unrecorded.remember(completions)
                self._keeper.hold([completion.claim for completion in completions])
            if failed is error:
                raise
            raise failed from error

    def _complete_late(self, completion: Completion) -> bool:
        owned = self._only_store_errors(self.hooks._complete, completion)
        self._keeper.drop([completion.claim])
        return owned

    def _renew_and_record(self, claims: Sequence[Claim]) -> list[bool]:
        """One round of the lease keeper: renew all leases, then retry unrecorded completions."""
        kept = self.hooks._renew_many(claims)
        self._unrecorded.offer_all()
        return kept


def _all_empty(claims: Sequence[Claim]) -> bool:
    # Checked first: usually the first claim is not empty, which is enough.
    return not claims or (claims[0].empty and all(claim.empty for claim in claims))
