"""Adapter: the common face of every broker's client, and Delivery, one message it handed over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, final

from idempotent.consumer import Consumer
from idempotent.message import Message
from idempotent.outcomes import Action, Result
from idempotent.values import value


@value
class Delivery:
    """One message as an adapter handed it over, to be given back exactly once: settled or requeued.

    Attributes:
        message: what the handler sees.
        token: the adapter's own handle on it, with the epoch (channel, connection, assignment) that delivered
            it. Opaque to everybody else.
    """

    message: Message
    token: Any = None


class Adapter(ABC):
    """One broker's client: receive, settle, publish.

    One thread owns the input and output: `open`, `receive`, `settle`, `requeue` and `close` are called by the
    thread that calls `Worker.run()` and by no other, so a client library that is not thread-safe needs no lock.
    (`publish` too, while a worker runs; only `wake` is for any thread.) Handlers run elsewhere; the Worker brings
    their results to the owner.

    Every delivery is settled or requeued once. If its epoch is over (the connection was lost, the partition went
    to somebody else), the broker delivers the message again by itself: the adapter drops the late settlement,
    counts it in `stale_settlements`, and neither sends nor raises anything.

    A new adapter is one subclass; nothing in the core knows it.
    """

    token_type: ClassVar[type] = object
    """The class of this adapter's tokens. A delivery with another one came from another adapter."""

    also_made: ClassVar[tuple[type, ...]] = ()
    """Other classes that `from_url` makes, and whose keywords a URL may give beside the adapter's own."""

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
    def open(self, consumers: Sequence[Consumer]) -> None:
        """Connect, and ask for the messages of these consumers: their `subject`s, under their `group`s.

        An adapter that waits for a broker to come up does that in `receive`, where a worker can be stopped.

        Raises:
            AdapterError: the broker refuses, or cannot be reached.
            ConfigurationError: these consumers cannot be served, for example an unknown subject.
        """

    @abstractmethod
    def receive(self, limit: int, timeout_s: float) -> list[Delivery]:
        """The next deliveries: at most `limit`, as soon as there is one, none after `timeout_s` seconds.

        Called over and over, with `limit` and `timeout_s` 0 too when the worker is full: time for heartbeats and
        other upkeep. Must come back within about `timeout_s` seconds either way. A record that is no message goes
        to the adapter's own reject target and is not returned. A lost connection is not an error here: the adapter
        connects again, call by call, and what was unsettled comes again.

        Raises:
            AdapterError: there is no going on; the worker stops.
        """

    @final
    def settle(self, delivery: Delivery, result: Result) -> None:
        """Do what `result.action` says, through one of the hooks below.

        Raises:
            AdapterError: unrecoverable: the worker stops, and the message is delivered again.
            TypeError: the delivery came from another adapter.
            ValueError: the action is HOLD.
        """
        self._check_token(delivery)
        action = result.action
        if action is Action.ACK:
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
        self._check_token(delivery)
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
        """Send a message to its `subject`, and return when the broker has taken responsibility for it.

        Raises:
            AdapterError: it was not taken, or this adapter only reads.
        """

    def publish_many(self, messages: Sequence[Message]) -> None:
        """Send messages, in their order, and return when the broker has taken responsibility for all of them.

        One wait for many messages where the client can; the default publishes one after the other.

        Raises:
            AdapterError: not all were taken. Some may have been: send all again, with the same ids.
        """
        for message in messages:
            self.publish(message)

    def dead_letter_subject(self, subject: str) -> str | None:
        """The subject under which the dead letters of `subject` can be received; None: they cannot."""
        del subject
        return None

    def wake(self) -> None:  # noqa: B027 - doing nothing is a good answer
        """Make the `receive` that waits now, or the next one, come back at once with what there is.

        The one method that any thread may call, after `close` too; the Worker does when a handler has finished.
        The default does nothing, which costs a settlement at most the short `timeout_s` that the Worker allows
        while handlers run.
        """

    @property
    def connected(self) -> bool:
        """Whether there is a connection to the broker now; for readiness. Adapters without a broker always are."""
        return True

    @property
    def finished(self) -> bool:
        """Every delivery is settled and none will ever come again, delayed ones included. Brokers never finish."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Disconnect. Deliveries that are not settled come again. Idempotent."""

    def _check_token(self, delivery: Delivery) -> None:
        if not isinstance(delivery.token, self.token_type):
            raise TypeError("this delivery came from another adapter")


def subjects_of(consumers: Sequence[Consumer]) -> list[str]:
    """The subjects of consumers, each once, in their order."""
    return list(dict.fromkeys(consumer.subject for consumer in consumers))


def reason_of(result: Result) -> str:
    """Why a delivery is a dead letter, in one line for its headers or its record."""
    if result.error is None:
        return result.outcome.value
    return f"{type(result.error).__name__}: {result.error}"
