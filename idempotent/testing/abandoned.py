"""abandon_claim: leave a message as a process leaves it that dies in its handler."""

from __future__ import annotations

from idempotent.claims import Claim, Guarantee
from idempotent.consumer import AnyConsumer
from idempotent.errors import ConfigurationError
from idempotent.message import Message


def abandon_claim(consumer: AnyConsumer, message: Message) -> Claim:
    """Claim a message's key and leave it so, as a process that dies in its handler: nothing renews or ends the claim.

    The handler does not run. Until the lease has ended, deliveries are `IN_PROGRESS`; the first one after it does what
    the consumer's `on_expired_lease` says. Give a `MemoryChecker` a `clock`, and put it forward. For another store,
    override the checker during this call with one whose `lease_s` is short, and wait.

    Args:
        consumer: whose checker has leases, or claims that never lapse.
        message: its key is free, or has a lapsed lease, which counts as an attempt.

    Returns:
        the claim, with the key and the fence that the dead process could have sent to others.

    Raises:
        ConfigurationError: the checker is transactional: the database frees the key of a process that dies.
        ValueError: the key is done, dead or claimed.
        MessageError: the message has no key.
        StoreError: the store did not answer.
    """
    binding = consumer.binding
    if binding.checker.guarantee is Guarantee.TRANSACTIONAL:
        raise ConfigurationError(
            f"{type(binding.checker).__name__} has no leases: a process that dies leaves no claim behind, and the next "
            "delivery runs"
        )
    request = binding.requests.of(message)
    decision = binding.protocol.claim(request)
    if decision.claim is None:
        raise ValueError(f"the key {request.key} is {decision.verdict.value}, so no delivery can claim it")
    binding.protocol.abandon(decision.claim)
    return decision.claim
