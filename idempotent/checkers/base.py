"""AbstractIdempotentChecker: the base of every checker, ours and yours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, final

from idempotent.admin import Finding, KeyAdmin
from idempotent.checkers.desk import ClaimDesk
from idempotent.checkers.hooks import CheckerHooks
from idempotent.claims import ClaimRequest, Guarantee
from idempotent.errors import ConfigurationError
from idempotent.keys import KeySpace

DEFAULT_LEASE_S: Final = 30.0
DEFAULT_RETENTION_S: Final = 14 * 86400
_GC_LEASE_KEY: Final = KeySpace("idempotent", "gc").key("leader")


class AbstractIdempotentChecker(CheckerHooks):
    """Decides which delivery runs, and records what became of it.

    Derive from it and write four hooks: `_claim`, `_complete`, `_release`, `_garbage_collect` (see `CheckerHooks`).
    `idempotent.testing.CheckerContract` proves the result.

    Args:
        lease_s: seconds a claim stays its owner's without renewal; None: without end (`claim_once`).
        retention_s: seconds a key is remembered, counted from its claim.

    Attributes:
        desk: where consumers claim, complete and release keys.

    Raises:
        ConfigurationError: a duration is not positive.
    """

    def __init__(
        self, *, lease_s: float | None = DEFAULT_LEASE_S, retention_s: float = DEFAULT_RETENTION_S
    ) -> None:
        if lease_s is not None and not lease_s > 0:
            raise ConfigurationError(f"lease_s must be positive seconds or None, not {lease_s!r}")
        if not retention_s > 0:
            raise ConfigurationError(f"retention_s must be positive seconds, not {retention_s!r}")
        self.lease_s = lease_s
        self.retention_s = float(retention_s)
        self.desk: Final = ClaimDesk(self)

    @property
    def guarantee(self) -> Guarantee:
        """What this checker promises."""
        return Guarantee.CLAIM_ONCE if self.lease_s is None else Guarantee.LEASED

    def admin(self) -> KeyAdmin:
        """Look at the stored keys, and decide about those that wait for a person. Optional for your own checker.

        Raises:
            ConfigurationError: this checker does not show its keys.
        """
        raise ConfigurationError(
            f"{type(self).__name__} cannot show its keys: give it a method admin() that returns a KeyAdmin"
        )

    def findings(self) -> Sequence[Finding]:
        """What the store's tables and settings mean for the checker's promise. Reads only; the default finds nothing.

        Raises:
            StoreError: the store did not answer.
        """
        return ()

    @final
    def garbage_collect(
        self, *, batch_size: int = 1000, on_batch: Callable[[int], object] | None = None
    ) -> int:
        """Delete every key past its expiry, in bounded batches. Returns the number deleted.

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
        """`garbage_collect`, unless another process does it now: then None. The lock is a key in the store.

        Raises:
            StoreError: the store did not answer.
        """
        leader = self._gc_leader
        if leader.lease_s is None:
            return self.garbage_collect(
                batch_size=batch_size
            )  # a lock that never lapses could block gc without end
        claim = leader.desk.claim(ClaimRequest(_GC_LEASE_KEY)).claim
        if claim is None:
            return None
        try:
            return self.garbage_collect(batch_size=batch_size)
        finally:
            leader.desk.release(claim)

    def close(self) -> None:
        """Give up connections and stop the background thread. Idempotent."""
        self.desk.close()

    @property
    def _gc_leader(self) -> AbstractIdempotentChecker:
        """The checker in whose store the lock of `garbage_collect_alone` is."""
        return self
