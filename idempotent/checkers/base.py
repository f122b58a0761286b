"""AbstractIdempotentChecker: the base class of every checker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import ClassVar, Final, final

from idempotent.admin import Finding, KeyAdmin
from idempotent.checkers.awaiting import Awaiting, InThreads
from idempotent.checkers.batching import Combiner
from idempotent.checkers.hooks import CheckerHooks
from idempotent.checkers.leading import Lead
from idempotent.checkers.protocol import ClaimProtocol
from idempotent.claims import Guarantee
from idempotent.errors import ConfigurationError
from idempotent.validation import flag, seconds, seconds_or_none, whole

DEFAULT_LEASE_S: Final = 30.0
DEFAULT_RETENTION_S: Final = 14 * 86400


class AbstractIdempotentChecker(CheckerHooks):
    """Decides which delivery runs, and records its result.

    Derive from it and write four hooks: `_claim`, `_complete`, `_release`, `_garbage_collect` (see `CheckerHooks`).
    `idempotent.testing.CheckerContract` tests the result.

    Args:
        lease_s: seconds a claim lasts without renewal; None: it never lapses (`claim_once`).
        retention_s: seconds a key is remembered, counted from its claim, or from its completion if less than half of
            that time was left then.
        dead_retention_s: seconds a DEAD key is remembered; None: until a person resolves it.
        combine: single claims and completions that arrive while several hooks are under way go together to
            `_claim_many` and `_complete_many`. Not for claims in transactions.
        one_writer: the store carries out one write at a time, so with `combine` no second call begins beside another.

    Attributes:
        is_shared: other processes may use the same store.
        protocol: claims, completes and releases keys for consumers.
        combiner: sends the claims and completions of lone messages together; None: each by itself.

    Raises:
        ConfigurationError: a duration is not a positive, finite number.
    """

    is_shared: ClassVar[bool] = True

    def __init__(
        self,
        *,
        lease_s: float | None = DEFAULT_LEASE_S,
        retention_s: float = DEFAULT_RETENTION_S,
        dead_retention_s: float | None = None,
        combine: bool = False,
        one_writer: bool = False,
    ) -> None:
        self.lease_s = seconds_or_none(lease_s, "lease_s")
        self.retention_s = seconds(retention_s, "retention_s")
        self.dead_retention_s = seconds_or_none(dead_retention_s, "dead_retention_s")
        self.protocol: Final = ClaimProtocol(self)
        self.combiner: Final = (
            Combiner(self.protocol, one_writer=one_writer) if flag(combine, "combine") else None
        )

    @property
    def lone(self) -> ClaimProtocol | Combiner:
        """Claims and completes the keys of single messages: the combiner, or else the protocol."""
        return self.combiner or self.protocol

    @cached_property
    def awaiting(self) -> Awaiting:
        """Runs the checker's steps for tasks."""
        return InThreads(self.protocol, self.combiner)

    @property
    def guarantee(self) -> Guarantee:
        """What this checker promises."""
        return Guarantee.CLAIM_ONCE if self.lease_s is None else Guarantee.LEASED

    @property
    def command_options(self) -> str:
        """The options that name the store to the command `idempotent`; empty: no command can reach it."""
        return ""

    @property
    def store_name(self) -> str:
        """The store, as metrics name it: without a user or a password, and the same in every process."""
        return type(self).__name__

    def admin(self) -> KeyAdmin:
        """The tool to inspect and change the stored keys. Optional for your own checker.

        Raises:
            ConfigurationError: this checker has no such tool.
        """
        raise ConfigurationError(
            f"{type(self).__name__} cannot show its keys: give it a method admin() that returns a KeyAdmin"
        )

    def ping(self) -> None:
        """Ask the store, with a read or two, whether it can take keys. Workers ask before their first message.

        The default asks nothing.

        Raises:
            StoreError: the store does not answer, refuses the login, or lacks a table.
        """

    def findings(self) -> Sequence[Finding]:
        """Check whether the store's tables and settings let the checker keep its promise. Changes nothing in the store.

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
            StoreError: the store did not answer; earlier batches stay deleted.
        """
        whole(batch_size, "batch_size")
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
        """`garbage_collect` under a lock, which is a key in the store; None: another process holds it.

        Raises:
            StoreError: the store did not answer.
        """
        lead = self.lead("gc")
        try:
            try:
                return self.garbage_collect(batch_size=batch_size) if lead.take() else None
            finally:
                lead.give_up()
        finally:
            lead.forget()  # a signal handler may have raised anywhere

    @final
    def lead(self, task: str) -> Lead:
        """What lets one process at a time, of all that use the store, do a task of this name."""
        return Lead(self._leader.protocol, task)

    def close(self) -> None:
        """Close connections and stop the background threads. Idempotent."""
        if self.combiner is not None:
            self.combiner.close()
        if "awaiting" in vars(self):
            self.awaiting.close()
        self.protocol.close()

    @property
    def _leader(self) -> AbstractIdempotentChecker:
        """The checker that claims the keys of leads."""
        return self
