"""CheckerHooks: the steps of the claim protocol that a store carries out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress

from idempotent.claims import Claim, ClaimRequest, Completion, Decision, Failure, Released, Remembers


class CheckerHooks(ABC):
    """The hooks of a checker. Each is one atomic step in the store, and several threads call them at once.

    A hook raises `StoreError` (or a subclass) when the store fails; any other exception is reported as a bug.
    Four hooks are required. The `_many` hooks loop over them; override them where the store takes many keys in one
    round trip.

    Attributes:
        lease_s: seconds a claim lasts without renewal; None: a claim never lapses (`claim_once`).
        retention_s: seconds a key is remembered, counted from its claim, or from its completion if less than half of
            that time was left then.
        dead_retention_s: seconds a DEAD key is remembered; None: until a person resolves it.
    """

    lease_s: float | None
    retention_s: float
    dead_retention_s: float | None

    group_is_atomic: bool = False
    """Whether a claim is in a transaction, rolled back unless it completes, which those of one `_claim_many` share."""
    remembers: Remembers = Remembers.KEYS
    """What is known of a message that was completed, and so what identifies a message."""

    @abstractmethod
    def _claim(self, request: ClaimRequest) -> Decision:
        """Claim the key if it is free, in one atomic step.

        A free key is stored with the request's owner, status and fingerprint, a fence from the store's clock in
        microseconds, and a lease and an expiry counted from the store's clock. For a key that is stored,
        `idempotent.checkers.judging.judge` returns the answer and the change.
        """

    @abstractmethod
    def _complete(self, completion: Completion) -> bool:
        """Make the key DONE if the claim's owner still owns it, lapsed or not. Returns whether it owns it.

        A completion without a result keeps a stored one. If less than half of the retention is left, the key expires a
        whole `retention_s` from now.
        """

    @abstractmethod
    def _release(self, claim: Claim, failure: Failure | None) -> Released:
        """Delete the key if it is in progress and the claim's owner still owns it.

        With a failure, in the same atomic step: count one attempt beside the key and keep the error; if
        `failure.kills(attempts)`, make the key DEAD; else, if `failure.delay_s(attempts)` is not 0, store the owner
        `idempotent.claims.NOBODY`, the status IN_PROGRESS, no fingerprint and a lease of that length, so that `judge`
        lets nobody claim it before.
        """

    @abstractmethod
    def _garbage_collect(self, limit: int) -> int:
        """Delete at most `limit` keys past their expiry, with their attempts. Returns the number of keys deleted.

        Never a key with a live lease, and never a key in progress of a consumer that parks. A DEAD key expires
        `dead_retention_s` after it became DEAD; None: never.
        """

    def _claim_many(self, requests: Sequence[ClaimRequest]) -> list[Decision]:
        """`_claim` for different keys; decisions in the order of the requests.

        A group's requests are made while they are read (see `Streamed`): a checker may send the first ones before it
        reads the rest, so that the store works meanwhile. The default frees the keys it claimed if a later one fails.
        """
        decisions: list[Decision] = []
        try:
            decisions.extend(self._claim(request) for request in requests)
        except BaseException:
            with suppress(Exception):  # those that cannot be freed lapse
                for decision in decisions:
                    if decision.claim is not None:
                        self._release(decision.claim, None)
            raise
        return decisions

    def _complete_many(self, completions: Sequence[Completion]) -> list[bool]:
        """`_complete` for many claims; answers in the order of the completions.

        The claims of one call share an owner token, or each has a token of its own. Then a key may occur twice, with a
        claim that has lost it and the claim that owns it.
        """
        return [self._complete(completion) for completion in completions]

    def _release_many(self, releases: Sequence[tuple[Claim, Failure | None]]) -> list[Released]:
        """`_release` for many claims, as in `_complete_many`; answers in the order of the releases."""
        return [self._release(claim, failure) for claim, failure in releases]

    def _renew_many(self, claims: Sequence[Claim]) -> list[bool]:
        """Let the leases of owned claims end `lease_s` from now, on the store's clock. True: still owned.

        The default renews nothing, which suits a checker whose claims do not lapse.
        """
        return [True] * len(claims)

    def _reconnect(self) -> None:  # noqa: B027 - optional
        """Close idle connections: a renewal on one of them got no answer, so the others may be dead too.

        The next renewal then opens a new one. The default does nothing.
        """
