"""Topology: the names and arguments of the queues, and their creation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from idempotent.adapters.rabbitmq.client import pika_errors
from idempotent.adapters.rabbitmq.options import QueueType

DEAD_SUFFIX: Final = ".dead"
_SECONDS: Final = (
    *(0.1, 0.25, 0.5, 1, 2, 5, 10, 15, 30),
    *(60 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(3600 * hours for hours in (1, 2, 6, 12)),
    *(86400 * days for days in (1, 2, 7, 30)),
)
DELAYS_MS: Final = tuple(round(1000 * seconds) for seconds in _SECONDS)
"""The possible delays. Few, because each is a queue of its own."""
# The broker deletes a queue without consumers and declarations after `x-expires`, with its messages.
UNUSED_MS: Final = 10 * 60_000
ASK_AGAIN_S: Final = 60.0
_NOT_FOUND: Final = 404
_QUORUM: Final = {
    "x-queue-type": "quorum",
    # The default is to republish without a confirm.
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


@dataclass(frozen=True, slots=True)
class Topology:
    """Names and arguments of queues.

    Attributes:
        declare: create missing queues. Existing ones are used as they are.
        queue_type: of the created queues.
        dead_letter_queue: for the dead letters of all queues; None: one for each, named `<queue>.dead`.
    """

    declare: bool
    queue_type: QueueType
    dead_letter_queue: str | None

    def dead(self, queue: str) -> str:
        """The queue for the dead letters of `queue`."""
        return self.dead_letter_queue or queue + DEAD_SUFFIX

    @staticmethod
    def delay(queue: str, delay_s: float) -> tuple[str, int]:
        """The delay queue for at least `delay_s` seconds, and its milliseconds."""
        wanted_ms = 1000 * delay_s
        delay_ms = next((ms for ms in DELAYS_MS if ms >= wanted_ms), DELAYS_MS[-1])
        return f"{queue}.retry.{delay_ms}", delay_ms

    def ensure_work(self, connection: Any, queues: Iterable[str]) -> None:
        """Create the consumed queues and their dead-letter queues.

        Raises:
            AMQPError: one is missing and may not be made.
        """
        for queue in queues:
            dead = self.dead(queue)
            # A dead-letter queue that a redrive consumes needs none of its own.
            if not queue.endswith(DEAD_SUFFIX) and queue != dead:
                self.ensure(connection, dead, self._arguments())
            self.ensure(connection, queue, self._work_arguments(dead))

    def ensure_plain(self, connection: Any, queue: str) -> None:
        """Create a queue to publish to.

        Raises:
            AMQPError: a queue is missing and must not be created.
        """
        self.ensure(connection, queue, self._work_arguments(self.dead(queue)))

    def ensure_dead(self, connection: Any, queue: str) -> None:
        """Create the dead-letter queue of a queue.

        Raises:
            AMQPError: a queue is missing and must not be created.
        """
        self.ensure(connection, self.dead(queue), self._arguments())

    def ensure_delay(self, connection: Any, queue: str, delay_s: float) -> None:
        """Create the queue that returns messages to `queue` after `delay_s` seconds.

        Raises:
            AMQPError: a queue is missing and must not be created.
        """
        name, delay_ms = self.delay(queue, delay_s)
        arguments = {
            **self._arguments(),
            "x-message-ttl": delay_ms,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": queue,
        }
        if self.queue_type is QueueType.CLASSIC:
            # Passive declarations do not keep a quorum queue from expiring, with its messages.
            arguments["x-expires"] = delay_ms + UNUSED_MS
        else:
            arguments.update(_QUORUM)
        self.ensure(connection, name, arguments)

    def ensure(self, connection: Any, queue: str, arguments: dict[str, Any]) -> None:
        """Create a durable queue.

        Raises:
            AMQPError: a queue is missing and must not be created.
        """
        # Passive first, because a declaration with other arguments than the queue's own is an error.
        try:
            _on_a_channel(connection, lambda channel: channel.queue_declare(queue, passive=True))
        except pika_errors.ChannelClosedByBroker as error:
            if error.reply_code != _NOT_FOUND or not self.declare:
                raise
            _on_a_channel(
                connection,
                lambda channel: channel.queue_declare(queue, durable=True, arguments=arguments),
            )

    @staticmethod
    def consumers(connection: Any, queue: str) -> int:
        """The number of consumers of a queue. Raises AMQPError if the queue does not exist."""
        found = _on_a_channel(connection, lambda channel: channel.queue_declare(queue, passive=True))
        return int(found.method.consumer_count)

    def _arguments(self) -> dict[str, Any]:
        return {"x-queue-type": self.queue_type.value}

    def _work_arguments(self, dead: str) -> dict[str, Any]:
        if self.queue_type is QueueType.CLASSIC:
            return self._arguments()
        # By default a quorum queue drops messages that reach its delivery limit.
        return {**_QUORUM, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}


def _on_a_channel(connection: Any, act: Callable[[Any], Any]) -> Any:
    """Act on a temporary channel, because a refusal closes it."""
    channel = connection.channel()
    answer = act(channel)
    channel.close()
    return answer
