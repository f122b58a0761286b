"""ClaimProtocol: the claim protocol around a checker's hooks: leases, lapses and owed steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from idempotent.checkers.hooks import CheckerHooks
from idempotent.checkers.leases import LeaseKeeper
from idempotent.checkers.owed import OwedSteps, Release, RunEnd, Unanswered, not_recorded_yet
from idempotent.claims import (
    Claim,
    ClaimRequest,
    Completion,
    Decision,
    Failure,
    Lapsed,
    Released,
)
from idempotent.errors import IdempotentError, StoreError, StoreUnavailableError, described
from idempotent.keys import NO_KEY, Key
from idempotent.observe.counting import CheckerEvents

A = TypeVar("A")
C = TypeVar("C")
R = TypeVar("R")


class ClaimProtocol:
    """Claims, completes and releases the keys of one checker for its consumers.

    Args:
        hooks: the checker.

    Attributes:
        hooks: carries out each step. Tests may replace it with a wrapper.
        events: counts what is noticed of a message, such as a lease that ended.
    """

    def __init__(self, hooks: CheckerHooks) -> None:
        self.hooks = hooks
        self.events: Final = CheckerEvents()
        count = self.events.count
        self._keeper: Final = LeaseKeeper(self._renew, self._reconnect, hooks.lease_s, count)
        self._owed: Final = OwedSteps(self._record_late, self._free_late, self._reconnect, count)

    def claim(self, request: ClaimRequest) -> Decision:
        """Claim one key. `Decision` documents the answers.

        Raises:
            StoreError: the store did not answer; whether the key was claimed is unknown. It is freed when it does.
        """
        if self._owed.steps and not self._owed.settle(request.key.hash):
            return not_recorded_yet()
        try:
            decision = self.hooks._claim(request)
            if type(decision) is not Decision:
                decision = _checked(decision, Decision, "_claim")
        except BaseException as error:
            self._owe_releases((request,), error)
            self._refuse_bug(error)
            raise
        if decision.claim is not None:
            self._hold((decision.claim,), (request,))
        return decision

    def claim_many(self, requests: Sequence[ClaimRequest]) -> list[Decision]:
        """Claim many different keys together; decisions in the order of the requests.

        Raises:
            StoreError: the store did not answer; which keys were claimed is unknown. They are freed when it does.
        """
        free = requests
        if self._owed.steps:
            free = [request for request in requests if self._owed.settle(request.key.hash)]
        try:
            decisions = []
            if free:
                decisions = _all_checked(self.hooks._claim_many(free), Decision, "_claim_many", free)
        except BaseException as error:
            self._owe_releases(free, error)
            self._refuse_bug(error)
            raise
        self._hold([decision.claim for decision in decisions if decision.claim is not None], free)
        if free is requests:
            return decisions
        by_hash = {request.key.hash: decision for request, decision in zip(free, decisions, strict=True)}
        return [by_hash.get(request.key.hash) or not_recorded_yet() for request in requests]

    def _hold(self, claims: Sequence[Claim], requests: Iterable[ClaimRequest]) -> None:
        """Renew the leases of these claims. If no thread can renew them, owe the store their release."""
        try:
            self._keeper.hold(claims)
        except StoreUnavailableError as error:
            self._owe_releases(requests, error)
            raise

    def _owe_releases(self, requests: Iterable[ClaimRequest], error: BaseException) -> None:
        """Owe the release of what may have been claimed: no handler runs for it, so it must not last.

        Not of a transaction's claims, which are rolled back. Nor of one with `Lapsed.ASK`: if it took the key over, its
        lease must end, so that the consumer is asked again about the run that died.
        """
        answered = isinstance(error, IdempotentError) and not isinstance(error, StoreUnavailableError)
        if not answered and not self.hooks.group_is_atomic:
            self._owed.remember(
                [
                    Unanswered(Claim(request.key, owner=request.owner))
                    for request in requests
                    if request.on_lapsed is not Lapsed.ASK
                ]
            )

    def complete(self, claim: Claim, result: bytes | None = None) -> bool:
        """Record that the claim's effect happened; False: another owner has the key.

        Raises:
            StoreError: the store did not record it. This process keeps the lease and retries, in the background and
                before its next claim of the key.
        """
        if claim.key is NO_KEY and claim.empty:
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
        return self._recorded(self._complete_each, completions, completions)

    def release(self, claim: Claim, failure: Failure | None = None) -> Released:
        """Free the key; with a failure, count an attempt, and make the key DEAD if its attempts are used up.

        Raises:
            StoreError: the store did not free it. This process retries, in the background and before its next claim of
                the key.
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
        try:
            if len(releases) == 1:
                return [self._only_store_errors(self._release_one, *releases[0])]
            return self._only_store_errors(self._release_each, releases)
        except StoreError:
            if not self.hooks.group_is_atomic:  # a transaction has been rolled back
                self._owed.remember([Release(*release) for release in releases])
            raise

    def abandon(self, claim: Claim) -> None:
        """Neither complete nor release the key: let its lease end, or its transaction roll back.

        One whose completion or release waits to be recorded is kept.
        """
        if claim not in self._owed.claims:
            self._keeper.drop([claim])
        if claim.transaction is not None:
            claim.transaction.close()

    def holds(self, claim: Claim) -> bool:
        """Whether the lease of a claim is renewed: it was neither completed nor released, nor found to be lost."""
        return claim in self._keeper.held

    def free(self, claim: Claim) -> None:
        """Free a key that no message waits for. If the store does not answer, it is free when the lease ends."""
        self._keeper.drop([claim])
        with suppress(StoreError):
            self._only_store_errors(self._release_one, claim, None)

    def abandon_all_of(self, owner: bytes) -> None:
        """Abandon what was claimed for an owner that is gone: it may not have heard of it.

        A signal handler may raise between the store's answer and the caller of the claim. Claims whose completion or
        release waits to be recorded are kept.
        """
        kept = self._owed.claims
        held = self._keeper.held
        self._keeper.drop([claim for claim in held if claim.owner == owner and claim not in kept])

    def owe_run_end(self, key: Key, record: Callable[[], object]) -> None:
        """Remember that a run has ended of which the store keeps a note. `RunEnd` documents the arguments."""
        self._owed.remember([RunEnd(Claim(key), record)])

    def settle_run_end(self, key: Key) -> None:
        """Offer the end of a run again, if it is owed.

        Raises:
            StoreError: the store did not record it.
        """
        self._owed.settle(key.hash)

    def try_key(self, request: ClaimRequest) -> StoreError | None:
        """Claim a key and free it at once: does the store take keys? Returns why it was not freed, if it was not.

        It is no message's key: it is neither renewed nor kept to be freed later. The same request may be tried again.

        Raises:
            StoreError: the store did not take the key.
        """
        decision = self._only_store_errors(self.hooks._claim, request)
        claim = _checked(decision, Decision, "_claim").claim
        try:
            if claim is not None:
                self._only_store_errors(self._release_one, claim, None)
        except StoreError as error:
            return error
        return None

    def close(self) -> None:
        """Offer owed steps once, and stop the background threads. Idempotent."""
        self._owed.close()
        self._keeper.close()

    @property
    def unrecorded(self) -> int:
        """How many completions and releases the store has not recorded yet. They are retried in the background."""
        return self._owed.number(Completion, Release)

    @property
    def unrecorded_releases(self) -> int:
        """How many of these are releases, whose handlers had no effect."""
        return self._owed.number(Release)

    # Answers of hooks are checked: an answer of another type must not become a verdict.

    def _complete_each(self, completions: Sequence[Completion]) -> list[bool]:
        return _all_checked(self.hooks._complete_many(completions), int, "_complete_many", completions)

    def _release_one(self, claim: Claim, failure: Failure | None) -> Released:
        return _checked(self.hooks._release(claim, failure), Released, "_release")

    def _release_each(self, releases: Sequence[tuple[Claim, Failure | None]]) -> list[Released]:
        return _all_checked(self.hooks._release_many(releases), Released, "_release_many", releases)

    def _only_store_errors(self, hook: Callable[..., R], *arguments: Any) -> R:
        """Call a hook."""
        try:
            return hook(*arguments)
        except Exception as error:
            self._refuse_bug(error)
            raise

    def _refuse_bug(self, error: BaseException) -> None:
        """Raise a StoreError for an unexpected exception of a hook: a bug in a checker must not become a verdict."""
        if isinstance(error, Exception) and not isinstance(error, IdempotentError):
            raise StoreError(f"a bug in {type(self.hooks).__name__}: {described(error)}") from error

    def _recorded(self, hook: Callable[[C], R], argument: C, completions: Sequence[Completion]) -> R:
        """Call a hook that records these completions; remember them if the store did not record them."""
        try:
            answer = hook(argument)
            if answer is None:
                raise TypeError("_complete answered None, not whether the claim's owner owns the key")  # noqa: TRY301 - handled as every bug of a hook
            if self._owed.steps:
                self._owed.forget(completions)
            return answer
        except Exception as error:
            if self.hooks.group_is_atomic:
                raise  # an exception of COMMIT may be the handler's failure
            if isinstance(error, StoreError) or not isinstance(error, IdempotentError):
                self._owed.remember(completions)
                self._keeper.hold([completion.claim for completion in completions])
            self._refuse_bug(error)
            raise

    def _record_late(self, step: Completion | Release) -> bool:
        if isinstance(step, Release):
            return self._only_store_errors(self._release_one, step.claim, step.failure).owned
        owned = self._only_store_errors(self.hooks._complete, step)
        self._keeper.drop([step.claim])
        return owned

    def _free_late(self, claims: Sequence[Claim]) -> None:
        self._only_store_errors(self._release_each, [(claim, None) for claim in claims])

    def _renew(self, claims: Sequence[Claim]) -> list[bool]:
        owned = self.hooks._renew_many(claims)
        if all(owned):
            return owned
        # What is owed may have been recorded, and its answer lost: whose the key is is known when it is settled.
        owed = self._owed.claims
        return [is_owned or claim in owed for claim, is_owned in zip(claims, owned, strict=True)]

    def _reconnect(self) -> None:
        self.hooks._reconnect()


def _checked(answer: A, kind: type, hook: str) -> A:
    if not isinstance(answer, kind):
        raise TypeError(f"{hook} answered {answer!r}, not a {kind.__name__}")
    return answer


def _all_checked(answers: list[A], kind: type, hook: str, asked: Sequence[object]) -> list[A]:
    if not isinstance(answers, (list, tuple)):
        raise TypeError(f"{hook} answered a {type(answers).__name__}, not a list")
    if len(answers) != len(asked):
        raise TypeError(f"{hook} gave {len(answers)} answers for {len(asked)} keys")
    for other in set(map(type, answers)):
        if not issubclass(other, kind):
            raise TypeError(f"{hook} answered a {other.__name__} for a key, not a {kind.__name__}")
    return answers


def _all_empty(claims: Sequence[Claim]) -> bool:
    # Checked first: usually the first claim is not empty, which is enough.
    return not claims or (claims[0].empty and all(claim.empty for claim in claims))
