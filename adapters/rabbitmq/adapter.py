"""RabbitMqAdapter: messages from, and to, the queues of a RabbitMQ broker, which a Keeper keeps in use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal

from idempotent.adapters.answers import Answers
from idempotent.adapters.base import Adapter, Delivery, subjects_of
from idempotent.adapters.copies import returned_headers
from idempotent.adapters.rabbitmq.client import LOST, is_missing, pika_errors, plain_error, remedy_for, within
from idempotent.adapters.rabbitmq.copies import Copies, Copy, CopyTarget
from idempotent.adapters.rabbitmq.findings import rabbitmq_findings
from idempotent.adapters.rabbitmq.management import Management
from idempotent.adapters.rabbitmq.messages import (
    ours_of,
    properties_of_copy,
    properties_to_publish,
    written_by_broker,
)
from idempotent.adapters.rabbitmq.options import AckMode, Consuming, QueueType
from idempotent.adapters.rabbitmq.publish_channels import Item
from idempotent.adapters.rabbitmq.publisher import Publisher, item_for
from idempotent.adapters.rabbitmq.server import Server, server_at
from idempotent.adapters.rabbitmq.session import Session, Token
from idempotent.adapters.rabbitmq.topology import Topology, delay_queues, looks_count, say_deleted
from idempotent.adapters.reconnecting import RECONNECT, Reconnecting, describe
from idempotent.admin import Finding
from idempotent.checkers.repeating import RepeatingThread
from idempotent.consumer import AnyConsumer
from idempotent.errors import AdapterError
from idempotent.forks import free_in_child
from idempotent.logs import EventLog
from idempotent.message import Message
from idempotent.outcomes import Result
from idempotent.policy import Backoff
from idempotent.validation import check_types, choice

log = EventLog(__name__)

# How long `close` waits for the confirmations of copies, which for a new delay queue are sent two seconds later: those
# of `auto` are the only ones of their messages.
_LAST_COPIES_S: Final = 4.0
_LAST_COPIES_AUTO_S: Final = 10.0
# A session this short was probably killed by one of its own messages: back off.
_BRIEF_S: Final = 1.0
_CLOSE_S: Final = 3.0
# Well within an expiry of a quarter of an hour, also when one worker ends and the next begins between two looks.
_LOOK_EVERY_S: Final = 300.0
# No permission to read; held exclusively; `basic.get` is not for queues of this kind.
_NOT_KEPT: Final = frozenset((403, 405, 406, 540))
# A look at a queue that hangs may outlast the adapter.
_KEEPER_STOP_S: Final = 1.0


class RabbitMqAdapter(Adapter):
    """Consume queues, each named like the subject of its consumer; publish through the default exchange.

    A message's id is its `x-idempotent-key` header, or else its `message_id` property. A failed message is published
    to a delay queue, a dead one to a dead-letter queue; the original is acknowledged when the broker has confirmed the
    copy. A copy that the broker refuses is sent again later, and the original stays unacknowledged.

    Args:
        url: `amqp://user:password@host:5672/vhost`, `amqps://` for TLS; several hosts are separated by commas.
        prefetch: how many unacknowledged deliveries of a queue the broker may send, 1 to 65535. None: twice the
            worker's `concurrency` x `batch_size` at first. Then it changes by itself: it grows to about 200 while fast
            handlers wait for the broker, to about 1000 while deliveries wait for their key or for the confirmation of
            their copy, and returns to the first number when a delivery has waited for a handler for a second. Set a
            number for a queue with `x-single-active-consumer`, for which it cannot grow.
        ack: when messages are acknowledged; one of `AckMode` or its value.
        ack_batch: for `batched`: messages per acknowledgement; default: half the prefetch, at most 64.
        ack_interval_s: for `batched`: the longest wait for a batch to fill, in seconds.
        pull: fetch messages one by one (`basic.get`): each costs a round trip, and the broker sends nothing ahead.
        declare: create missing queues; existing ones are used as they are.
        queue_type: of the created queues, but for delay queues; one of `QueueType` or its value.
        dead_letter_queue: one for all queues; default: one for each, named `<queue>.dead`.
        per_channel_prefetch: `prefetch` counts for all queues together. Quorum queues refuse it, and RabbitMQ from 4.3
            on counts for each queue all the same, unless `deprecated_features.permit.global_qos = true` is in
            `rabbitmq.conf`.
        heartbeat_s: seconds between heartbeats; a dead connection is noticed within about two of them.
        fail_fast: raise when the very first attempt to connect fails.
        ca_file: TLS: trusted certificates in place of the system's.
        cert_file: TLS: this client's certificate.
        key_file: TLS: its key, if not in `cert_file`.
        management: `http://host:15672`, the broker's management API, which `idempotent doctor` asks with the user of
            `url`.
        backoff: waits between attempts to connect.

    Raises:
        ConfigurationError: an option is out of its range, or the URL is invalid.
        MissingExtraError: pika is not installed.
    """

    token_type = Token

    def __init__(
        self,
        url: str,
        *,
        prefetch: int | None = None,
        ack: AckMode | Literal["manual", "batched", "auto"] = AckMode.MANUAL,
        ack_batch: int | None = None,
        ack_interval_s: float = 0.1,
        pull: bool = False,
        declare: bool = True,
        queue_type: QueueType | Literal["classic", "quorum"] = QueueType.CLASSIC,
        dead_letter_queue: str | None = None,
        per_channel_prefetch: bool = False,
        heartbeat_s: int = 60,
        fail_fast: bool = False,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        management: str | None = None,
        backoff: Backoff = RECONNECT,
    ) -> None:
        """Connect in `open`."""
        check_types(RabbitMqAdapter, locals())
        mode = choice(AckMode, ack, "ack")
        self._server = server_at(
            url, heartbeat_s=heartbeat_s, ca_file=ca_file, cert_file=cert_file, key_file=key_file
        )
        self._management = None if management is None else Management(management, self._server)
        self._topology = Topology(declare, choice(QueueType, queue_type, "queue_type"), dead_letter_queue)
        self._consuming = Consuming(mode, ack_batch, ack_interval_s, prefetch, per_channel_prefetch, pull)
        self._at_most_once = mode is AckMode.AUTO
        self._reconnecting = Reconnecting(self._server.where, backoff=backoff, fail_fast=fail_fast)
        self._publisher = Publisher(self._server, backoff, self.wake)
        self._copies = Copies(
            self._publisher, self._topology, outlive=self._at_most_once, current=lambda: self._session
        )
        self._queues: list[str] = []
        self._session: Session | None = None
        self._keeper: Keeper | None = None
        self._connected_at: float | None = None
        self._attempts = 0
        self._owner: int | None = None
        self._woken = free_in_child(threading.Event())

    def open(self, consumers: Sequence[AnyConsumer]) -> None:
        # A session opened by `publish` consumes nothing.
        self.close()
        queues = subjects_of(consumers)
        self._topology.check_names(queues)
        self._queues = queues
        self._owner = threading.get_ident()
        self._connected_at = None
        session = self._connect()
        if self._queues:
            self._keeper = Keeper(
                self._server,
                self._topology,
                self._queues,
                lambda: self._publisher.channels,
                lambda: self.paused_subjects,
            )
            self._keeper.start()
        else:
            self._open_to_publish(session)

    def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
        self._check_owner()
        if not self._queues:
            self._woken.wait(timeout_s)
            self._woken.clear()
            return []
        until = time.monotonic() + timeout_s
        deliveries: list[Delivery] = []
        while True:
            wait_s = max(until - time.monotonic(), 0.0)
            session = self._session or self._connect()
            if session is None:
                self._woken.wait(min(wait_s, self._reconnecting.wait_s))
            else:
                try:
                    self._copies.settle()
                    session.pause(self.paused_subjects)
                    session.pump(limit, self.full_subjects, wait_s, self._woken.is_set)
                    self._copies.settle()
                    taken = session.take(limit, self.full_subjects)
                    deliveries = [delivery for delivery in taken if not self._passes_on(session, delivery)]
                except LOST as error:
                    self._lose(error)
            if deliveries or self._woken.is_set() or time.monotonic() >= until:
                self._woken.clear()
                return deliveries

    def backlog(self) -> Mapping[str, int]:
        self._check_owner()
        try:
            return {} if self._session is None else self._session.backlog()
        except LOST as error:
            self._lose(error)
            return {}

    def _acknowledge(self, delivery: Delivery, result: Result) -> bool:
        del result
        token: Token = delivery.token
        return self._settle(token, lambda: token.session.acknowledge(token.tag))

    def _delay(self, delivery: Delivery, after_s: float) -> bool:
        return self._copy(delivery, CopyTarget.DELAY, after_s=after_s)

    def _dead_letter(self, delivery: Delivery, result: Result) -> bool:
        return self._copy(delivery, CopyTarget.DEAD_LETTER, result)

    def _give_back(self, delivery: Delivery) -> bool:
        if self._at_most_once:
            return self._copy(delivery, CopyTarget.QUEUE)
        token: Token = delivery.token
        return self._settle(token, lambda: token.session.give_back(token.tag))

    def publish(self, message: Message) -> None:
        self.publish_many([message])

    def publish_many(self, messages: Sequence[Message]) -> None:
        self._publish(messages, self._item)

    def put_back(self, letter: Message, group: str) -> None:
        del group  # its queue has no other
        self._publish([letter], self._item_back)

    def written_on(self, letter: Delivery) -> Mapping[str, Any]:
        by_broker = written_by_broker(letter.message, self._topology.work_of)
        return {**by_broker, **ours_of(letter.message, letter.message.subject)}

    def wake(self) -> None:
        if self._woken.is_set():
            return
        self._woken.set()
        session = self._session
        if session is not None:
            session.wake()

    def dead_letter_subject(self, subject: str) -> str:
        return self._topology.dead(subject)

    def findings(self, subjects: Collection[str], *, horizon_s: float | None = None) -> Iterator[Finding]:
        del horizon_s
        self._topology.check_names(subjects)
        yield from rabbitmq_findings(self._server, self._topology, self._management, subjects)

    @property
    def connected(self) -> bool:
        return self._session is not None if self._queues else self._publisher.connected

    @property
    def waits_for(self) -> str | None:
        return self._copies.untaken.text if self.connected else None

    def close(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.stop()
        try:
            self._wait_for_copies()
            session, self._session = self._session, None
            if session is not None:
                within(session.close, _CLOSE_S)
        except LOST as error:
            log.warning("close_failed", extra={"broker": self._server.where, "error": describe(error)})
        self._publisher.close()
        if self._at_most_once and self._copies:
            log.error("messages_lost", extra={"count": len(self._copies)})

    # Private

    def _publish(self, messages: Sequence[Message], item: Callable[[Message], Item]) -> None:
        self._check_owner()
        answers = Answers(messages)
        self._publisher.send_and_wait(answers.made(item), answers, self._keep_alive)
        answers.check()

    def _item(self, message: Message) -> Item:
        place = self._topology.work_place(message.subject)
        return item_for(place, message.body, properties_to_publish(message))

    def _item_back(self, letter: Message) -> Item:
        ours = returned_headers(letter, ours_of(letter, self._topology.dead(letter.subject)), letter.subject)
        place = self._topology.work_place(letter.subject)
        return item_for(place, letter.body, properties_of_copy(letter, {**letter.headers, **ours}))

    def _open_to_publish(self, session: Session | None) -> None:
        """Leave connecting to the publisher, which serves its own: nothing would serve one that consumes nothing."""
        self._session = None
        if session is not None:
            with suppress(TimeoutError):
                within(session.abandon, _CLOSE_S)
        self._publisher.start()

    def _connect(self) -> Session | None:
        """A new session; None if no attempt is due or the attempt failed."""
        if self._reconnecting.wait_s > 0:
            return None
        self._attempts += 1
        try:
            connection = self._server.connect(self._attempts - 1)
            session = Session(
                connection,
                self._topology,
                self._queues,
                self._consuming,
                window=self._consuming.window(self.capacity),
                again=self._connected_at is not None,
                paused=self.paused_subjects,
            )
        except LOST as error:
            advice = remedy_for(error)
            is_gone = isinstance(error, pika_errors.ChannelClosedByBroker) and advice is not None
            if advice is not None and (is_gone or self._connected_at is None):
                raise AdapterError(f"{self._server.where}: {advice} ({describe(error)})") from error
            self._reconnecting.failed(plain_error(error))
            return None
        self._reconnecting.succeeded()
        self._connected_at = time.monotonic()
        self._session = session
        return session

    def _lose(self, error: BaseException) -> None:
        session, self._session = self._session, None
        if session is not None:
            error = plain_error(session.reason(error))
            session.abandon()
        if self._connected_at is not None and time.monotonic() - self._connected_at < _BRIEF_S:
            self._reconnecting.failed(error)
        else:
            self._reconnecting.lost(error)

    def _settle(self, token: Token, act: Callable[[], None]) -> bool:
        """Settle a delivery once. False: it is stale, or the connection was lost and its message may come again."""
        self._check_owner()
        if not (token.session is self._session or self._at_most_once) or not token.session.mark_settled(
            token.tag
        ):
            return False
        try:
            act()
        except LOST as error:
            self._lose(error)
            return False
        return True

    def _copy(
        self, delivery: Delivery, target: CopyTarget, result: Result | None = None, after_s: float = 0.0
    ) -> bool:
        copy = Copy(delivery.message, delivery.token, target, result, time.monotonic() + after_s)
        return self._settle(copy.token, lambda: self._copies.make(copy))

    def _passes_on(self, session: Session, delivery: Delivery) -> bool:
        """Move a delayed message to its work queue, whose consumer handles it, if this worker may not be that one."""
        if delivery.error is not None or session.may_handle(delivery.token):
            return False
        self._copy(delivery, CopyTarget.QUEUE)
        return True

    def _keep_alive(self) -> None:
        """Serve the consuming connection while a message is published."""
        if self._session is not None:
            try:
                self._session.pump(0, (), 0.0, self._woken.is_set)
            except LOST as error:
                self._lose(error)

    def _wait_for_copies(self) -> None:
        """Give the copies that are out a short time to be confirmed, so that their originals do not come again."""
        if self._at_most_once:
            self._copies.retry_due(also_early=True)
        until = time.monotonic() + (_LAST_COPIES_AUTO_S if self._at_most_once else _LAST_COPIES_S)
        while self._copies.sent and time.monotonic() < until:
            if self._session is not None:
                self._woken.clear()
                self._copies.settle()
                self._session.pump(0, (), 0.05, self._woken.is_set)
            else:
                self._woken.wait(0.05)
            self._copies.settle()

    def _check_owner(self) -> None:
        if self._owner is not None and self._owner != threading.get_ident():
            raise AdapterError("only the thread that opened a RabbitMqAdapter may use it")


class Keeper:
    """Looks at a worker's queues that no worker consumes every five minutes, which counts as their use.

    These are its delay queues and dead-letter queues, and work queues whose consumers are paused.

    A policy `expires` makes the broker delete a queue, with its messages, after that time without use. A
    declaration is a use of a classic queue. Of a quorum queue only a consumer and `basic.get` are, so a delay queue's
    first message is fetched and returned. Before RabbitMQ 4.3 that adds to the message's count of deliveries, and a
    quorum queue without a dead-letter exchange drops a message that reaches its delivery limit, which a policy can set:
    there dead-letter queues are only declared.

    AMQP cannot list queues, and the broker logs an error for each name that does not exist. So all names are tried in
    the first look, and later those that existed then, or to which the worker has published since.

    It has a connection of its own, for the time of a look, in a thread of its own: a queue that does not answer stops
    no delivery, and an alarm of the broker does not stop a connection that publishes nothing.

    Args:
        server: where to connect.
        topology: knows the names of the queues.
        queues: the work queues.
        published: the queues to which the worker has published.
        paused: the work queues that have no consumer now, which are looked at as the dead-letter queues are.
    """

    def __init__(
        self,
        server: Server,
        topology: Topology,
        queues: Sequence[str],
        published: Callable[[], Iterable[str]],
        paused: Callable[[], Iterable[str]],
    ) -> None:
        """Start no thread yet."""
        self._server = server
        self._topology = topology
        self._published = published
        self._paused = paused
        self._delays = {name for queue in queues for name in delay_queues(queue)}
        self._names = self._delays | {topology.dead(queue) for queue in queues} - set(queues)
        self._counts: dict[str, int] = {}
        """The queues that existed at the last look, and how many messages were in them."""
        self._is_first = True
        self._refused: set[str] = set()
        self._looks = 0
        self._thread = RepeatingThread(self._look_if_it_answers, "idempotent-keeper", _LOOK_EVERY_S)

    def start(self) -> None:
        """Start the thread. Its first look is after five minutes: a worker that ends sooner looks at no queue."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._thread.stop(_KEEPER_STOP_S)

    # In the keeper's thread

    def _look_if_it_answers(self) -> None:
        try:
            self._look()
        except LOST as error:
            # The adapter says so itself when the broker is down.
            log.debug("queues_not_kept", extra={"broker": self._server.where, "error": describe(error)})

    def _look(self) -> None:
        """Use each queue once. Raises AMQPError or OSError when the broker cannot be reached."""
        names = self._names if self._is_first else self._names & {*self._counts, *self._published()}
        names = names.union(queue for queue, _ in self._topology.consumed(self._paused()))
        connection: Any = None
        try:
            for queue in sorted(names - self._refused):
                if not self._thread.runs:
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
            if queue in self._delays or not looks_count(connection.server_properties):
                method, _, _ = channel.basic_get(queue)
                if method is not None:
                    channel.basic_nack(method.delivery_tag, requeue=True)
            channel.close()
        except LOST as error:
            if is_missing(error):
                self._say_lost(queue)
            elif isinstance(error, pika_errors.ChannelClosedByBroker) and error.reply_code in _NOT_KEPT:
                self._refused.add(queue)
                log.warning("queue_not_kept", extra={"queue": queue, "error": describe(error)})
            # Else its node is down, or the connection is lost, perhaps over this queue: the others get a new one.

    def _say_lost(self, queue: str) -> None:
        count = self._counts.pop(queue, None)
        if count is not None:
            say_deleted(queue, count=count)
