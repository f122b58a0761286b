"""OutboxStats: what is in an outbox."""

from __future__ import annotations

from idempotent.values import value


@value
class OutboxStats:
    """What is in an outbox.

    Attributes:
        waiting: messages to publish.
        oldest_s: seconds since the oldest waiting or held message was sent; None: no message waits or is held.
        held: messages in held lanes.
        lanes: held lanes.
        delayed: messages that wait for their time.
        relays: relays with a lease.
    """

    waiting: int
    oldest_s: float | None
    held: int
    lanes: int
    delayed: int
    relays: int
