"""Fences: what keeps a relay that was paused from publishing late."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from idempotent.message import Message


class Fences(ABC):
    """One fence for each bucket of an outbox. The broker takes a bucket's messages from its last taker alone.

    A relay takes the fences of its buckets, then reads their messages, and then publishes what it has read. If another
    relay has taken a fence meanwhile, and may have published more, the broker refuses what was read before. So a
    message may come twice, but never after one that follows it in its order key.

    Belongs to the thread of its adapter.
    """

    @abstractmethod
    def take(self, buckets: Collection[int]) -> None:
        """Hold the fences of these buckets and of no others. Those that are held already cost nothing.

        Raises:
            AdapterError: the broker did not give all of them.
        """

    @abstractmethod
    def publish(self, messages: Sequence[Message], buckets: Sequence[int]) -> None:
        """Send messages, each of the bucket at its place, and return when the broker has confirmed all of them.

        The messages of one bucket are published together or not at all. A fence that is not held is not taken here.

        Raises:
            PublishError: the broker refused some of them, or did not answer; the error says which. All others are
                confirmed.
        """

    @abstractmethod
    def close(self) -> None:
        """Let all fences go. Idempotent."""
