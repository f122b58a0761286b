"""Outputs: the messages that handlers return, kept until a transaction sends them together with the offsets."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from idempotent.adapters.copies import KEY_HEADER, without_ours
from idempotent.adapters.kafka.client import KafkaMessage
from idempotent.adapters.kafka.records import Headers, encoded, origin_of, size_of
from idempotent.errors import OutputError, described
from idempotent.message import Message


@dataclass(frozen=True, slots=True)
class Output:
    """One record to send."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: Headers


@dataclass(slots=True, eq=False)
class Produced:
    """A finished message with outputs.

    Attributes:
        message: the input, as its handler saw it.
        outputs: at least one.
        size: in bytes, of the message and its outputs.
        refused_until: the broker refused an output, so no transaction includes them before this time of the
            adapter's clock. The offset waits, for example until a dead letter of the input is confirmed.
    """

    message: Message
    outputs: tuple[Output, ...]
    size: int = 0
    refused_until: float = 0.0

    @property
    def offset(self) -> int:
        return origin_of(self.message.raw)[2]


class Outputs:
    """The outputs of one assignment of a partition: when it ends they are dropped, and the messages run elsewhere."""

    def __init__(self) -> None:
        self._by_offset: dict[int, Produced] = {}
        self.size = 0
        """Bytes of the kept messages and outputs."""

    def __len__(self) -> int:
        """How many messages have outputs that are not sent."""
        return len(self._by_offset)

    def keep(self, message: Message, value: Any) -> None:
        """Keep what the handler of `message` returned. Messages may finish in any order.

        Raises:
            OutputError: the value cannot be sent.
        """
        outputs = outputs_of(message, value)
        if outputs:
            size = size_of(message.raw) + sum(len(output.value or b"") for output in outputs)
            produced = Produced(message, outputs, size)
            self._by_offset[produced.offset] = produced
            self.size += size

    def before(self, mark: int) -> list[Produced]:
        """The outputs for a commit of this offset, in input order. Later ones would repeat after a crash."""
        return [self._by_offset[offset] for offset in sorted(self._by_offset) if offset < mark]

    def drop_before(self, mark: int) -> None:
        """Forget outputs that were sent."""
        for produced in self.before(mark):
            self.give_up(produced)

    def give_up(self, produced: Produced) -> None:
        """Forget outputs that cannot be sent: a dead letter of their input replaces them."""
        del self._by_offset[produced.offset]
        self.size -= produced.size

    def cap(self, mark: int) -> int:
        """The greatest offset that a commit may name: not past a message whose outputs are refused."""
        now = time.monotonic()
        refused = (each.offset for each in self._by_offset.values() if each.refused_until > now)
        return min([mark, *refused])


def outputs_of(message: Message, value: Any) -> tuple[Output, ...]:
    """The records for what the handler of `message` returned: None, a Message, or a list of messages.

    An output without an id gets the input's id with its own number, which is the same whenever the handler runs
    again. Without a `key` of its own it keeps the input's Kafka key, and so the order; if the input has no key, the
    output's id becomes the key.

    Raises:
        OutputError: the value is of another type, or cannot be sent.
    """
    if value is None:
        return ()
    messages = [value] if isinstance(value, Message) else value
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Iterable):
        raise _no_output(value)
    try:
        return tuple(_output(message, output, number) for number, output in enumerate(messages))
    except OutputError:
        raise
    except Exception as error:  # raised by the iterator, or by a header that is not text
        raise OutputError(f"an output cannot be sent: {described(error)}") from error


def _output(message: Message, output: Any, number: int) -> Output:
    if not isinstance(output, Message):
        raise _no_output(output)
    for name in output.headers:
        if not isinstance(name, str):
            raise OutputError(f"an output cannot be sent: a header's name is of type {type(name).__name__}")
    identity = _bytes(output.id) or b"%s/%d" % (_bytes(message.id) or b"", number)
    headers = encoded({**without_ours(output.headers), KEY_HEADER: identity}.items())
    key = output.key
    if key is None:
        source = output.raw if isinstance(output.raw, KafkaMessage) else message.raw
        key = source.key() or identity
    return Output(output.subject, output.body, key, headers)


def _no_output(value: Any) -> OutputError:
    return OutputError(
        "with semantics='exactly_once' a handler returns None, a Message, or a list of Messages to send, "
        f"not {type(value).__name__}"
    )


def _bytes(identity: str | bytes | None) -> bytes | None:
    return identity.encode() if isinstance(identity, str) else identity
