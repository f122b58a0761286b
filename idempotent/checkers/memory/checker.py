"""MemoryChecker and AttemptChecker: keys in this process's memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final

from idempotent.admin import KeyAdmin
from idempotent.checkers.awaiting import Awaiting, InLoop
from idempotent.checkers.base import DEFAULT_LEASE_S, DEFAULT_RETENTION_S, AbstractIdempotentChecker
from idempotent.checkers.memory.admin import MemoryKeyAdmin
from idempotent.checkers.memory.keys import MemoryKeys
from idempotent.claims import Claim, ClaimRequest, Completion, Decision, Failure, Released, Remembers

DEFAULT_MAX_KEYS: Final = 1_000_000


class MemoryBacked(AbstractIdempotentChecker):
    """A checker over `MemoryKeys`; the subclass defines completion."""

    def __init__(
        self,
        *,
        lease_s: float | None = DEFAULT_LEASE_S,
        retention_s: float = DEFAULT_RETENTION_S,
        dead_retention_s: float | None = None,
        max_keys: int = DEFAULT_MAX_KEYS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(lease_s=lease_s, retention_s=retention_s, dead_retention_s=dead_retention_s)
        self.keys: Final = MemoryKeys(
            lease_s=lease_s,
            retention_s=self.retention_s,
            dead_retention_s=dead_retention_s,
            max_keys=max_keys,
            clock=clock,
        )

    @cached_property
    def awaiting(self) -> Awaiting:
        return InLoop(self.protocol)

    def admin(self) -> KeyAdmin:
        return MemoryKeyAdmin(self.keys)

    def _claim(self, request: ClaimRequest) -> Decision:
        return self.keys.claim(request)

    def _release(self, claim: Claim, failure: Failure | None) -> Released:
        return self.keys.release(claim, failure)

    def _renew_many(self, claims: Sequence[Claim]) -> list[bool]:
        return [self.keys.renew(claim) for claim in claims]

    def _excuse_many(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self.keys.excuse(claim)

    def _garbage_collect(self, limit: int) -> int:
        return self.keys.collect(limit)


class MemoryChecker(MemoryBacked):
    """Keys in this process's memory: for tests, demos and effects that die with the process.

    Args:
        lease_s: seconds a claim lasts without renewal; None: it never lapses.
        retention_s: seconds a key is remembered, counted from its claim, or from its completion if less than half of
            that time was left then.
        dead_retention_s: seconds a DEAD key is remembered; None: until a person resolves it.
        max_keys: the most keys remembered. When they are reached, the oldest done or dead keys, a hundredth of
            `max_keys`, are forgotten before they expire.
        clock: seconds since the epoch; injectable for tests.

    Raises:
        ConfigurationError: a duration or `max_keys` is not positive.
    """

    @cached_property
    def awaiting(self) -> Awaiting:
        return InLoop(self.protocol)

    def _complete(self, completion: Completion) -> bool:
        return self.keys.complete(completion.claim, completion.result)


class AttemptChecker(MemoryBacked):
    """Lets every delivery run, for consumers where another system decides which messages are done.

    Use it with Kafka's transactions (`KafkaAdapter(semantics="exactly_once")`): if a checker remembered a message whose
    transaction is aborted later, the next delivery would be a duplicate, and its outputs would be lost. With any other
    semantics, effects happen again with every delivery.

    The position identifies a message, for adapters that give one (Kafka), so messages that were sent twice both run.
    Two deliveries of one position do not run at the same time. Attempts are counted and dead messages stay dead while
    this process lives.

    Args:
        lease_s: see `MemoryChecker`.
        retention_s: seconds the attempts of a failed message are remembered.
        dead_retention_s: see `MemoryChecker`.
        max_keys: the most messages in progress or failed.
        clock: see `MemoryChecker`.

    Raises:
        ConfigurationError: a duration or `max_keys` is not positive.
    """

    remembers = Remembers.NOTHING

    def _complete(self, completion: Completion) -> bool:
        return self.keys.forget(completion.claim)
