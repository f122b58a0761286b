"""Route: what is known of a subscriber, most of which has no public name in FastStream."""

# ruff: noqa: SLF001

from __future__ import annotations

import math
from functools import partial
from typing import Any, Final

from faststream import AckPolicy

from idempotent.codecs import Codec


class Route:
    """A subscriber and one of its handlers: all that FastStream does not tell in its public names.

    Attributes:
        name: of the subscriber, in errors.
        middlewares: those that its messages pass.
        publishers: of what the handler returns.
        serializer: with which FastStream encodes that.
    """

    def __init__(self, subscriber: Any, handler: Any) -> None:
        config = subscriber._outer_config
        self.middlewares: Final = config.broker_middlewares
        self.name: Final[str] = subscriber.specification.call_name
        self.publishers: Final = handler._publishers
        self.serializer: Final = config.fd_config._serializer
        self._subscriber = subscriber
        self._config = config

    def has_output(self, msg: Any) -> bool:
        """Whether FastStream publishes what the handler returns for a message."""
        return bool(self.publishers or (msg.reply_to and not self._subscriber._no_reply))

    def subject(self, raw: Any) -> tuple[str, str | None]:
        """Queue or topic, and the group of its readers. Not the routing key: that of two queues may be the same."""
        if self._library == "rabbit":
            return self._subscriber.queue.add_prefix(self._config.prefix).name, None
        return raw.topic(), self._subscriber.group_id

    def hold_s(self, given_s: float) -> float:
        """How long a message is held whose key is in use, in seconds.

        Kafka takes no message back: FastStream seeks to it, and the next acknowledgement of another partition commits
        past it, so that a restart would lose it.
        """
        return math.inf if self._library == "confluent" else given_s

    @property
    def _library(self) -> str | None:
        """`rabbit` or `confluent`; None: another one."""
        homes = (each.__module__.split(".") for each in type(self._subscriber).__mro__)
        names = {home[1] for home in homes if home[0] == "faststream" and len(home) > 1}
        return next(iter(names & {"rabbit", "confluent"}), None)

    @property
    def is_acknowledged_first(self) -> bool:
        """Nothing can be returned to the broker."""
        return self._subscriber.ack_policy is AckPolicy.ACK_FIRST

    def why_not(self, codec: Codec | None, *, replies: bool = False) -> str | None:
        """Why it cannot be protected; None: it can.

        Args:
            codec: of outputs; None: FastStream's.
            replies: the message wants an answer.
        """
        if self._library is None:
            return "only RabbitMQ and Kafka (confluent) are supported"
        if self.is_acknowledged_first:
            return (
                "AckPolicy.ACK_FIRST (the default for Kafka) acknowledges a message before it is handled, and loses it "
                "with the process; give ack_policy=AckPolicy.NACK_ON_ERROR or another one"
            )
        if self._subscriber.ack_policy is AckPolicy.MANUAL:
            return (
                "with AckPolicy.MANUAL FastStream does not settle duplicates, whose handler does not run; give another "
                "policy. A handler may still `await message.ack()`"
            )
        if getattr(self._subscriber._decoder, "__name__", "") == "decode_batch":
            return "a batch has one acknowledgement for many keys; write a subscriber without batch=True"
        if any(type(each).__name__ == "BatchPublisher" for each in self.publishers):
            return "the outputs of a batch publisher cannot be stored; write a publisher without batch=True"
        if (self.publishers or replies) and codec is None and self._config.broker_codec is not None:
            return (
                "outputs are stored as FastStream encodes them, and this broker has a codec of its own; give codec= to "
                "IdempotentMiddleware, too"
            )
        return None


def handler_in(call_next: Any) -> Any:
    """The handler behind a middleware and those after it; None: it protects none, as in `get_one()`."""
    while isinstance(call_next, partial):
        call_next = call_next.args[0]
    owner = getattr(call_next, "__self__", None)
    return owner if hasattr(owner, "_publishers") and not is_fake(owner) else None


def is_fake(handler: Any) -> bool:
    """Whether a test broker has it to see what is published."""
    return str(getattr(handler._declared_call, "__module__", "")).startswith("faststream._internal.testing.")
