"""Keeper: uses the adapter's queues that have no consumer, so that a policy `expires` does not delete them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from idempotent.adapters.rabbitmq.client import LOST, is_missing, pika_errors
from idempotent.adapters.rabbitmq.server import Server
from idempotent.adapters.rabbitmq.topology import Topology, delay_queues, say_deleted
from idempotent.adapters.reconnecting import describe
from idempotent.logs import EventLog

log = EventLog(__name__)

# Well within an expiry of a quarter of an hour, also when one worker ends and the next begins between two looks.
_LOOK_EVERY_S: Final = 300.0
# No permission to read; held exclusively; `basic.get` is not for queues of this kind.
_FOR_EVER: Final = frozenset((403, 405, 406, 540))
# A look at a queue that hangs may outlast the adapter.
_STOP_S: Final = 1.0


class Keeper:
    """Looks at the delay queues and dead-letter queues of a worker every five minutes, which counts as their use.

    A policy `expires` makes the broker delete a queue, with its messages, after that time without use. A
    declaration is a use of a classic queue. Of a quorum queue only a consumer and `basic.get` are, so a delay queue's
    first message is fetched and returned. That adds to the message's count of deliveries, and a quorum queue without a
    dead-letter exchange drops a message that reaches its delivery limit: dead-letter queues are only declared.

    AMQP cannot list queues, and the broker logs an error for each name that does not exist. So all names are tried in
    the first look, and later those that existed then, or to which the worker has published since.

    It has a connection of its own, for the time of a look, in a thread of its own: a queue that does not answer stops
    no delivery, and an alarm of the broker does not stop a connection that publishes nothing.

    Args:
        server: where to connect.
        topology: knows the names of the queues.
        queues: the work queues.
        published: the queues to which the worker has published.
    """

    def __init__(
        self,
        server: Server,
        topology: Topology,
        queues: Sequence[str],
        published: Callable[[], Iterable[str]],
    ) -> None:
        """Start no thread yet."""
        self._server = server
        self._published = published
        self._delays = {name for queue in queues for name in delay_queues(queue)}
        self._names = self._delays | {topology.dead(queue) for queue in queues} - set(queues)
        self._counts: dict[str, int] = {}
        """The queues that existed at the last look, and how many messages were in them."""
        self._is_first = True
        self._refused: set[str] = set()
        self._looks = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="idempotent-keeper", daemon=True)

    def start(self) -> None:
        """Look for the first time in five minutes: many workers do not live so long."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        self._thread.join(_STOP_S)

    # In the keeper's thread

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_EVERY_S):
            try:
                self._look()
            except LOST as error:
                # The adapter says so itself when the broker is down.
                log.debug("queues_not_kept", extra={"broker": self._server.where, "error": describe(error)})

    def _look(self) -> None:
        """Use each queue once. Raises AMQPError or OSError when the broker cannot be reached."""
        names = self._names if self._is_first else self._names & {*self._counts, *self._published()}
        connection: Any = None
        try:
            for queue in sorted(names - self._refused):
                if self._stopped.is_set():
                    return
                if connection is None or not connection.is_open:
                    connection = self._server.connect(self._looks)
                    self._looks += 1
                self._keep(connection, queue)
            self._is_first = False
        finally:
            if connection is not None:
                with suppress(*LOST):
                    connection.close()

    def _keep(self, connection: Any, queue: str) -> None:
        try:
            channel = connection.channel()
            self._counts[queue] = channel.queue_declare(queue, passive=True).method.message_count
            if queue in self._delays:
                method, _, _ = channel.basic_get(queue)
                if method is not None:
                    channel.basic_nack(method.delivery_tag, requeue=True)
            channel.close()
        except LOST as error:
            if is_missing(error):
                self._say_lost(queue)
            elif isinstance(error, pika_errors.ChannelClosedByBroker) and error.reply_code in _FOR_EVER:
                self._refused.add(queue)
                log.warning("queue_not_kept", extra={"queue": queue, "error": describe(error)})
            # Else its node is down, or the connection is lost, perhaps over this queue: the others get a new one.

    def _say_lost(self, queue: str) -> None:
        count = self._counts.pop(queue, None)
        if count is not None:
            say_deleted(queue, count=count)
