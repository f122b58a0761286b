"""AttemptChecker: counts attempts, and remembers nothing that is done."""

from __future__ import annotations

from idempotent.checkers.memory.checker import MemoryBacked
from idempotent.claims import Completion


class AttemptChecker(MemoryBacked):
    """Lets every delivery run, for consumers where another system decides what is done.

    That is a transaction of Kafka (`KafkaAdapter(semantics="exactly_once")`): if a checker remembered a message whose
    transaction is aborted afterwards, the next delivery would be a duplicate, and its outputs were lost. With any other
    semantics it means that effects happen again with every delivery.

    Messages are known by their position, for adapters that give them one (Kafka). It knows nothing of messages that
    were sent twice. Two deliveries of one position do not run at once; attempts are counted, and what is dead stays
    dead, in this process and for as long as it lives.

    Args:
        lease_s: see `MemoryChecker`.
        retention_s: seconds the attempts of a failed message are remembered.
        max_keys: the most messages in progress or failed.
        clock: see `MemoryChecker`.

    Raises:
        ConfigurationError: a duration or `max_keys` is not positive.
    """

    keeps_positions = True
    remembers_done = False

    def _complete(self, completion: Completion) -> bool:
        return self.keys.forget(completion.claim)
