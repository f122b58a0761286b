"""Event, Stage and OutboxStats: what observers are told besides outcomes."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from idempotent.values import value


class Event(Enum):
    """Events that are counted besides outcomes."""

    RAN_WITHOUT_KEY = "ran_without_key"
    """A handler ran unprotected, as the consumer allows: the message had no key, or the store did not answer."""
    RAN_DISABLED = "ran_disabled"
    """A handler ran although its key was not acquired, because the kill switch is on."""
    LEASE_TAKEN_OVER = "lease_taken_over"
    """A delivery became the owner of a key whose lease had ended."""
    LEASE_RENEWED_LATE = "lease_renewed_late"
    """A lease ended before it was renewed or its handler finished: another delivery could have taken the key over."""
    COMPLETION_LOST = "completion_lost"
    """An effect happened, but another delivery had taken over its key: the effect may happen twice."""
    COMPLETION_NOT_RECORDED = "completion_not_recorded"
    """An effect happened, but the store did not record the completion; the completion is retried."""
    RESULT_NOT_STORED = "result_not_stored"
    """The handler's result could not be stored; duplicates get no result."""
    GROUP_REPEATED = "group_repeated"
    """A group was rolled back and its messages ran one by one."""
    TRANSACTION_REPEATED = "transaction_repeated"
    """The database rolled a transaction back, and the message ran again."""


class Stage(Enum):
    """What takes time in the life of a message."""

    __hash__ = object.__hash__  # by identity, as equality

    CLAIM = "claim"
    """The store answers the claim of its key. A checker with transactions begins one."""
    HANDLER = "handler"
    """The handler runs."""
    COMPLETION = "completion"
    """The store records the completion of its key. A checker with transactions commits."""
    SETTLE = "settle"
    """A worker tells the broker: it acknowledges, sends a copy to be delivered later, or a dead letter."""


Timed: TypeAlias = tuple[Stage, float, int]
"""What took time, the seconds, and for how many messages together. A tuple: each message makes several."""


@value
class OutboxStats:
    """What is in an outbox.

    Attributes:
        waiting: messages to publish.
        oldest_s: seconds since the oldest waiting message was sent, or its delay ended; None: none waits.
        held: messages in held lanes.
        lanes: held lanes.
        delayed: messages that wait for their time.
        relays: relays with a lease.
        idle_relays: of these, how many have no bucket of one of their brokers: they wait until other relays give
            buckets back, or the leases of one that was killed end.
        leases_end_s: seconds until the last lease of a bucket ends, if its relay does not renew it; None: no relay has
            a bucket.
    """

    waiting: int
    oldest_s: float | None
    held: int
    lanes: int
    delayed: int
    relays: int
    idle_relays: int = 0
    leases_end_s: float | None = None
