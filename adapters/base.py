"""Adapter: the common interface of all broker clients. Delivery: one message that an adapter received."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, final

from idempotent.adapters.answers import Answers
from idempotent.adapters.copies import GROUP_HEADER, ORIGIN_HEADER, group_in
from idempotent.admin import Finding, Level
from idempotent.consumer import AnyConsumer
from idempotent.errors import AdapterError, MessageError, PublishError
from idempotent.message import Message
from idempotent.outcomes import ACK, Action, Result
from idempotent.values import value


@value
class Delivery:
    """One received message, to be settled or requeued exactly once.

    Attributes:
        message: what the handler sees.
        token: the adapter's handle, which names the epoch (channel, connection, assignment) that delivered the
            message. Opaque to all other code.
        error: why a part of the message cannot be read; the Worker rejects it and no handler sees it. None: all of
            it was read.
        only_for: the group that alone is to process it, because the others have had the original. None: all.
    """

    message: Message
    token: Any = None
    error: MessageError | None = None
    only_for: str | None = None


class Adapter(ABC):
    """One broker's client: receive, settle, publish.

    One thread owns the input and output: only the thread that calls `Worker.run()` calls `open`, `receive`,
    `settle`, `requeue` and `close`, so a client library that is not thread-safe needs no lock. The same holds for
    `publish` while a worker runs; any thread may call `wake`. Handlers run in other threads; the Worker brings
    their results to the owner.

    Every delivery is settled or requeued once. If its epoch is over (the connection was lost, the partition was
    reassigned), the broker delivers the message again: the adapter drops the late settlement, counts it in
    `stale_settlements`, and neither sends nor raises anything.

    A new adapter is one subclass that implements the abstract methods; the core does not change.
    """

    token_type: ClassVar[type] = object
    """The class of this adapter's tokens. A delivery with another one came from another adapter."""

    also_made: ClassVar[tuple[type, ...]] = ()
    """Other classes that `from_url` makes, and whose keywords a URL may give beside the adapter's own."""

    full_subjects: Collection[str] = frozenset()
    """Subjects whose consumers have no room. The Worker sets it before each `receive`, which keeps their messages back.

    An adapter may ignore it; then a slow consumer can delay the others."""

    paused_subjects: Collection[str] = frozenset()
    """Those of `full_subjects` that stay full until a person resumes their consumer. The Worker sets it before `open`.

    An adapter whose broker minds messages that are sent ahead and not settled for hours gives them back, and asks for
    no more. Others may ignore it."""

    capacity: int | None = None
    """How many deliveries of a subject are received and not yet processed at once. The Worker sets it before `open`.

    A broker that counts what it delivers against a limit should send little more than that ahead.
    """

    fences: Fences | None = None
    """What a relay takes before it reads, so that it cannot publish late; None: the broker has no such thing."""

    stale_settlements: int = 0
    """Settlements dropped because the epoch of their delivery was over."""

    @classmethod
    def from_url(cls, url: str, **options: Any) -> Adapter:
        """Make an adapter for a URL without its query, which has become `options`; see `adapter_from_url`.

        The default gives both to the constructor.

        Raises:
            ConfigurationError: the URL or an option cannot work. The error shows no password.
        """
        make: Callable[..., Adapter] = cls
        return make(url, **options)

    @abstractmethod
    def open(self, consumers: Sequence[AnyConsumer]) -> None:
        """Connect, and subscribe to the `subject`s of these consumers under their `group`s.

        Without consumers the adapter only publishes: it joins no group, and `receive` does the upkeep and returns
        nothing. An adapter that waits for an unreachable broker waits in `receive`, where a worker can be stopped.

        Raises:
            AdapterError: the broker refuses the connection, or cannot be reached.
            ConfigurationError: these consumers cannot be served, for example an unknown subject.
        """

    @abstractmethod
    def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
        """Return at most `limit` deliveries: as soon as one is available, or none after `timeout_s` seconds.

        The Worker calls this repeatedly, also with `limit` and `timeout_s` 0 when it is full, so that the adapter can
        send heartbeats and do other upkeep. Returns within about `timeout_s` seconds in any case. A malformed record
        has an `error`, or goes to the adapter's own reject target and is not returned. A lost connection is not an
        error here: the adapter reconnects, call by call, and the broker delivers the unsettled messages again.

        Raises:
            AdapterError: unrecoverable: the worker stops.
        """

    def backlog(self) -> Mapping[str, int | Mapping[str, int]]:
        """How many messages wait, by subject, in the broker's own terms. Only the owner thread calls it.

        RabbitMQ: those in the queues that are ready for delivery, and in no worker's hands; each process has the same
        number. Kafka: those that are not finished, which is the lag, for each partition of this process by its name,
        such as `orders-0`. What the broker does not tell in an instant, or at all, is missing; the default knows
        nothing.

        Raises:
            AdapterError: unrecoverable: the worker stops.
        """
        return {}

    @final
    def settle(self, delivery: Delivery, result: Result) -> None:
        """Do what `result.action` says, through one of the hooks below.

        Raises:
            AdapterError: unrecoverable: the worker stops, and the message is delivered again.
            TypeError: the delivery came from another adapter.
            ValueError: the action is HOLD.
        """
        if not isinstance(delivery.token, self.token_type):
            raise _foreign()
        action = result.action
        if action is ACK:
            is_settled = self._acknowledge(delivery, result)
        elif action is Action.DELAY:
            is_settled = self._delay(delivery, result.retry_after_s or 0.0)
        elif action is Action.DEAD_LETTER:
            is_settled = self._dead_letter(delivery, result)
        else:
            raise ValueError("HOLD is handled by the Worker and never settled")
        if not is_settled:
            self.stale_settlements += 1

    @final
    def requeue(self, delivery: Delivery) -> None:
        """Return a delivery unprocessed, to be delivered again soon: at shutdown, or when it was held long enough.

        Raises:
            AdapterError: unrecoverable: the worker stops, and the message is delivered again.
            TypeError: the delivery came from another adapter.
        """
        if not isinstance(delivery.token, self.token_type):
            raise _foreign()
        if not self._give_back(delivery):
            self.stale_settlements += 1

    # Hooks of `settle` and `requeue`. Each returns False when the epoch of the delivery is over: nothing was sent, or
    # the connection was lost and the broker may not have received it.

    @abstractmethod
    def _acknowledge(self, delivery: Delivery, result: Result) -> bool:
        """Tell the broker that the message is done. `result.value` is what its handler returned."""

    @abstractmethod
    def _delay(self, delivery: Delivery, after_s: float) -> bool:
        """Have the message delivered again after `after_s` seconds."""

    @abstractmethod
    def _dead_letter(self, delivery: Delivery, result: Result) -> bool:
        """Send a confirmed copy with the reason to the dead-letter target, then acknowledge."""

    @abstractmethod
    def _give_back(self, delivery: Delivery) -> bool:
        """Have the message delivered again as soon as possible."""

    @abstractmethod
    def publish(self, message: Message) -> None:
        """Send a message to its `subject`, and return when the broker has confirmed it.

        Raises:
            PublishError: the broker refused the message, or did not answer.
            AdapterError: the message was not sent, for example because this adapter only reads.
        """

    def publish_many(self, messages: Sequence[Message]) -> None:
        """Send messages, in their order, and return when the broker has confirmed all of them.

        A message that is refused holds up no other. Those that the client had sent together with it are sent once more,
        and may arrive behind later ones, or twice.

        An adapter whose client can waits once for many messages; the default publishes one after the other.

        Raises:
            PublishError: the broker refused some of them, or did not answer; the error says which. All others are
                confirmed.
            AdapterError: none was sent, for example because this adapter only reads.
        """
        answers = Answers(messages)
        for place, message in enumerate(messages):
            try:
                self.publish(message)
            except PublishError as error:
                for reason in error.refused.values():
                    answers.refuse(place, reason)
                for reason in error.unknown.values():
                    answers.lose([place], reason)
            except AdapterError as error:
                if place == 0:
                    raise
                answers.lose(range(place, len(messages)), error)
                break
        answers.check()

    def put_back(self, letter: Message, group: str) -> None:
        """Send a dead letter to its `subject` as the message that it was, and return when the broker has confirmed it.

        `letter.raw` is the dead letter as the client library received it. Where several groups receive each message of
        a subject, it is received with `Delivery.only_for`: this group. The default publishes the letter, which is
        enough where a copy keeps everything and a subject has one group.

        Raises:
            PublishError: the broker refused the message, or did not answer.
            AdapterError: the message was not sent.
        """
        del group
        self.publish(letter)

    def written_on(self, letter: Delivery) -> Mapping[str, Any]:
        """What was written on a dead letter when it was made, by the names in `idempotent.adapters.copies`."""
        del letter
        return {}

    def origin_of(self, letter: Delivery) -> str | None:
        """Where the original of a dead letter was; None: unknown, or each subject has a target of its own."""
        origin = self.written_on(letter).get(ORIGIN_HEADER)
        return None if origin is None else str(origin)

    def group_of(self, letter: Delivery) -> str | None:
        """The group whose dead letter it is; None: unknown, or each subject has one group."""
        return group_in(self.written_on(letter), GROUP_HEADER)

    def dead_letter_subject(self, subject: str) -> str | None:
        """The subject under which the dead letters of `subject` can be received; None if they cannot."""
        del subject
        return None

    def findings(self, subjects: Collection[str], *, horizon_s: float | None = None) -> Iterator[Finding]:
        """Check the broker, and what it has for these subjects, for `idempotent doctor`. The adapter is not open.

        It makes, consumes and changes nothing. The default looks at nothing and says so.

        Args:
            subjects: of the consumers; none: only the broker is checked.
            horizon_s: the longest time after which a message can be redelivered, in seconds; None: unknown.

        Raises:
            AdapterError: the broker refuses the connection, or cannot be reached.
        """
        del subjects, horizon_s
        yield Finding(Level.ADVICE, f"{type(self).__name__}: this broker is not looked at")

    def wake(self) -> None:  # noqa: B027 - optional
        """Make the current `receive`, or the next one, return at once with the available deliveries.

        Any thread may call this, also after `close`; the Worker does when a handler has finished. The default does
        nothing, which delays a settlement by at most the short `timeout_s` that the Worker uses while handlers run.
        """

    @property
    def connected(self) -> bool:
        """Whether the adapter is connected to its broker, for readiness probes. Always true without a broker."""
        return True

    @property
    def waits_for(self) -> str | None:
        """What is missing or refused although the broker answers, for the health file; None: nothing that is known."""
        return None

    @property
    def finished(self) -> bool:
        """Whether all messages are settled, delayed ones included, and no new one can arrive. Brokers never finish."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Disconnect. The broker delivers unsettled messages again. Idempotent."""


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


def _foreign() -> TypeError:
    return TypeError("this delivery came from another adapter")


def subjects_of(consumers: Sequence[AnyConsumer]) -> list[str]:
    """The subjects of consumers, each once, in their order."""
    return list(dict.fromkeys(consumer.subject for consumer in consumers))
