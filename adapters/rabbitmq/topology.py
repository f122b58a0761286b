"""Topology: the names and arguments of the queues, and their creation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from idempotent.adapters.rabbitmq.client import is_missing, pika_errors
from idempotent.adapters.rabbitmq.options import QueueType
from idempotent.errors import AdapterError, ConfigurationError
from idempotent.logs import EventLog

log = EventLog(__name__)

NAME_BYTES: Final = 255
"""The most that AMQP has room for in the name of a queue, an exchange, a routing key or a virtual host."""
# RabbitMQ 4 tells the name and the virtual host of a queue that is missing, in 255 bytes. If it has more to say, it
# closes the connection instead of the channel. This leaves 40 bytes to the virtual host.
_QUEUE_BYTES: Final = 180
DEAD_SUFFIX: Final = ".dead"
DUE_SUFFIX: Final = ".retry.due"
_SECONDS: Final = (
    *(0.1, 0.25, 0.5, 1, 2, 5, 10, 15, 30),
    *(60 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(3600 * hours for hours in (1, 2, 6, 12)),
    *(86400 * days for days in (1, 2, 7, 30)),
)
DELAYS_MS: Final = tuple(round(1000 * seconds) for seconds in _SECONDS)
"""The possible delays. Few, because each is a queue of its own."""
_NOT_FOUND: Final = 404
_VERSION: Final = re.compile(r"(\d+)\.(\d+)")
# The first versions that let a quorum queue have no delivery limit, and that do not count what is returned.
_UNLIMITED: Final = (4, 0)
_NACK_IS_FREE: Final = (4, 3)
_NOT_IMPLEMENTED: Final = 540
# Other queues republish without a confirm: a broker that is killed then loses what has just come back.
_RETURNS_SAFELY: Final = {
    "x-queue-type": "quorum",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}


@dataclass(frozen=True, slots=True)
class QueueDeclaration:
    """A queue to publish to.

    Attributes:
        queue: its name.
        arguments: to create it with when it is missing; None: it must exist.
    """

    queue: str
    arguments: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Topology:
    """Names and arguments of queues.

    Attributes:
        declare: create missing queues. Existing ones are used as they are.
        queue_type: of the created queues, but for delay queues, which are quorum queues.
        dead_letter_queue: for the dead letters of all queues; None: one for each, named `<queue>.dead`.
    """

    declare: bool
    queue_type: QueueType
    dead_letter_queue: str | None

    def dead(self, queue: str) -> str:
        """The name of the queue for the dead letters of `queue`."""
        return self.dead_letter_queue or queue + DEAD_SUFFIX

    def due(self, queue: str) -> str:
        """The name of the queue to which the delayed messages of `queue` return, and that is consumed with it.

        Not `queue` itself: where that one is full and refuses messages, they could not come back.
        """
        return queue if self._is_dead(queue) else queue + DUE_SUFFIX

    @staticmethod
    def delay(queue: str, delay_s: float) -> tuple[str, int]:
        """The name of the delay queue for at least `delay_s` seconds, and its milliseconds."""
        wanted_ms = 1000 * delay_s
        delay_ms = next((ms for ms in DELAYS_MS if ms >= wanted_ms), DELAYS_MS[-1])
        return _delay_queue(queue, delay_ms), delay_ms

    def check_names(self, queues: Iterable[str]) -> None:
        """Whether all queues that the adapter makes for these can have their names.

        Raises:
            ConfigurationError: one is too long, or has a character that no name can have.
        """
        delayed = max((_delay_queue("", delay_ms) for delay_ms in DELAYS_MS), key=len)
        for queue in queues:
            # A redrive, or a consumer of dead letters, may delay them in its turn.
            _check_name(queue, delayed if self._is_dead(queue) else DEAD_SUFFIX + delayed, "queue")
        if self.dead_letter_queue is not None:
            _check_name(self.dead_letter_queue, delayed, "dead_letter_queue")

    # Places to publish to

    def work_place(self, queue: str) -> QueueDeclaration:
        """A work queue."""
        return self._place(queue, self._work_arguments(self.dead(queue)))

    def dead_place(self, queue: str) -> QueueDeclaration:
        """The queue for the dead letters of `queue`."""
        return self._place(self.dead(queue), self._arguments())

    def delay_place(self, queue: str, delay_s: float) -> QueueDeclaration:
        """The queue from which messages come back after at least `delay_s` seconds.

        It has no `x-expires`: declarations do not keep a quorum queue from expiring, with its messages.
        """
        name, delay_ms = self.delay(queue, delay_s)
        arguments = {
            **_RETURNS_SAFELY,
            "x-message-ttl": delay_ms,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": self.due(queue),
        }
        return self._place(name, arguments)

    def _place(self, queue: str, arguments: dict[str, Any]) -> QueueDeclaration:
        return QueueDeclaration(queue, arguments if self.declare else None)

    # Queues to consume

    def consumed(self, queues: Iterable[str]) -> Iterator[tuple[str, str]]:
        """The queues to consume: the work queues, and those to which their delayed messages return.

        Yields each with the work queue that its messages are for.
        """
        for queue in queues:
            yield queue, queue
            if self.due(queue) != queue:
                yield self.due(queue), queue

    @staticmethod
    def work_of(queue: str) -> str:
        """The work queue whose messages a consumed queue has."""
        return queue.removesuffix(DUE_SUFFIX)

    def ensure_work(self, connection: Any, queues: Iterable[str], *, again: bool) -> None:
        """Create the consumed queues and their dead-letter queues.

        Args:
            connection: to the broker.
            queues: the work queues.
            again: they existed before, so that a missing one has been deleted, with its bindings.

        Raises:
            AMQPError: one is missing and may not be made.
            AdapterError: a work queue has been deleted.
        """
        for queue, work in self.consumed(queues):
            dead = self.dead(work)
            # A dead-letter queue that a redrive consumes needs none of its own. Publishing a dead letter creates a
            # missing queue; a worker that connects again must not wait for one that hangs.
            if queue == work and not self._is_dead(queue) and not again:
                self._ensure(connection, dead, self._arguments())
            self._ensure(
                connection, queue, self._work_arguments(dead), was_there=again, has_bindings=queue == work
            )

    def _ensure(
        self,
        connection: Any,
        queue: str,
        arguments: dict[str, Any],
        *,
        was_there: bool = False,
        has_bindings: bool = False,
    ) -> None:
        # Passive first, because a declaration with other arguments than the queue's own is an error.
        try:
            _on_a_channel(connection, lambda channel: channel.queue_declare(queue, passive=True))
        except pika_errors.ChannelClosedByBroker as error:
            if error.reply_code != _NOT_FOUND or not self.declare:
                raise
            if was_there and is_missing(error) and has_bindings:
                raise AdapterError(
                    f"queue {queue!r} was deleted while it was consumed. A new one would have none of its bindings, "
                    "and messages would be lost without a trace: create it with its bindings, then start the worker"
                ) from error
            if was_there and is_missing(error):
                say_deleted(queue)
            _on_a_channel(
                connection,
                lambda channel: channel.queue_declare(
                    queue, durable=True, arguments=created_with(arguments, connection.server_properties)
                ),
            )
            log.info("queue_created", extra={"queue": queue})

    @staticmethod
    def counts(connection: Any, queue: str) -> tuple[int, int]:
        """The messages that wait in a queue, and its consumers. Raises AMQPError if the queue does not exist."""
        found = _on_a_channel(connection, lambda channel: channel.queue_declare(queue, passive=True)).method
        return int(found.message_count), int(found.consumer_count)

    def _is_dead(self, queue: str) -> bool:
        return queue.endswith(DEAD_SUFFIX) or queue == self.dead_letter_queue

    def _arguments(self) -> dict[str, Any]:
        return {"x-queue-type": self.queue_type.value}

    def _work_arguments(self, dead: str) -> dict[str, Any]:
        if self.queue_type is QueueType.CLASSIC:
            return self._arguments()
        # By default a quorum queue drops messages that reach its delivery limit.
        return {**_RETURNS_SAFELY, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}


def fault_in_name(name: str, most: int = NAME_BYTES) -> str | None:
    """Why RabbitMQ can have nothing of this name; None: it can.

    Args:
        name: of a queue, an exchange, a routing key or a virtual host.
        most: how many bytes it may have.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "it has half of a surrogate pair"
    if size > most:
        return f"it has {size} bytes, and {most} is the most"
    # The broker takes line breaks out of a name.
    return "it has a line break" if set(name) & {"\n", "\r"} else None


def _check_name(name: str, suffix: str, what: str) -> None:
    fault = fault_in_name(name, _QUEUE_BYTES - len(suffix))
    if fault is not None:
        raise ConfigurationError(
            f"{what} {name!r} cannot be: {fault}, because RabbitMQ can report a missing queue of {_QUEUE_BYTES} bytes, "
            f"and the adapter's own queues add up to {len(suffix)}, as in '<queue>{suffix}'"
        )


def say_deleted(queue: str, *, count: int | None = None) -> None:
    """Say in the log that a queue has gone with the messages that were in it; `count`: how many, if it is known."""
    log.error("queue_deleted", extra={"queue": queue, "count": count})


def created_with(arguments: dict[str, Any] | None, server: Mapping[str, Any]) -> dict[str, Any] | None:
    """The arguments with which a server creates a queue; `server`: the properties that it tells of itself.

    From RabbitMQ 4.0 on a quorum queue has a delivery limit by default. A message over the limit would leave a delay
    queue before its time, and a queue of dead letters for nowhere. Before 4.0 a negative limit is refused.
    """
    if (
        arguments is None
        or arguments.get("x-queue-type") != QueueType.QUORUM.value
        or ("x-dead-letter-exchange" in arguments and "x-message-ttl" not in arguments)
        or version_of(server) < _UNLIMITED
    ):
        return arguments
    return {**arguments, "x-delivery-limit": -1}


def looks_count(server: Mapping[str, Any]) -> bool:
    """Whether a message that is fetched and returned comes nearer to the delivery limit of its queue."""
    return version_of(server) < _NACK_IS_FREE


def version_of(server: Mapping[str, Any]) -> tuple[int, int]:
    """The major and the minor version; zeros if it is unknown."""
    match = _VERSION.match(str(server.get("version", "")))
    return (int(match[1]), int(match[2])) if match else (0, 0)


def delay_queues(queue: str) -> list[str]:
    """All names of queues in which failed messages of `queue` may wait."""
    return [_delay_queue(queue, delay_ms) for delay_ms in DELAYS_MS]


def delayed_queues(queue: str) -> list[str]:
    """All names of queues that may have delayed messages of `queue`."""
    return [queue + DUE_SUFFIX, *delay_queues(queue)]


def _delay_queue(queue: str, delay_ms: int) -> str:
    return f"{queue}.retry.{delay_ms}"


def get(channel: Any, queue: str) -> tuple[Any, Any, Any]:
    """One message of a queue, as `basic_get` returns it.

    Raises:
        AdapterError: it is a stream. A consumer of a stream gets only what arrives later, and an acknowledgement
            records nothing.
        AMQPError, OSError: the broker refused, or the connection was lost.
    """
    try:
        got: tuple[Any, Any, Any] = channel.basic_get(queue)
    except (pika_errors.ChannelClosedByBroker, pika_errors.ConnectionClosedByBroker) as error:
        if error.reply_code != _NOT_IMPLEMENTED:
            raise
        raise AdapterError(
            f"{queue!r} is a stream, which the adapter does not support: its messages could be skipped. Consume a "
            "classic or quorum queue that is bound to the same exchange"
        ) from error
    return got


def _on_a_channel(connection: Any, act: Callable[[Any], Any]) -> Any:
    """Act on a temporary channel, because a refusal closes it."""
    channel = connection.channel()
    answer = act(channel)
    channel.close()
    return answer
