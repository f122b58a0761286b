"""AttemptChecker: counts failed attempts, and does not remember completed messages."""

from __future__ import annotations

from idempotent.checkers.memory.checker import MemoryBacked
from idempotent.claims import Completion


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

    keeps_positions = True
    remembers_done = False

    def _complete(self, completion: Completion) -> bool:
        return self.keys.forget(completion.claim)
