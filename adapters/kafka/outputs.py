"""Outputs: what handlers want sent, kept until a transaction has sent it together with the offsets."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from idempotent.adapters.copies import KEY_HEADER
from idempotent.adapters.kafka.client import KafkaMessage, Raw
from idempotent.adapters.kafka.records import Headers, encoded, origin_of
from idempotent.errors import OutputError
from idempotent.message import Message


@dataclass(frozen=True, slots=True)
class Output:
    """One record to send."""

    topic: str
    value: bytes
    key: bytes | None
    headers: Headers


@dataclass(slots=True, eq=False)
class Produced:
    """A finished message with outputs.

    Attributes:
        message: the input, as its handler saw it.
        raw: the input, as the client library gave it.
        outputs: at least one.
        refused_until: the broker takes no such output, so no transaction has it before this time of the adapter's
            clock; the offset waits, perhaps for a dead letter of the input that is safe.
    """

    message: Message
    raw: Raw
    outputs: tuple[Output, ...]
    refused_until: float = 0.0

    @property
    def offset(self) -> int:
        return origin_of(self.raw)[2]


class Outputs:
    """Those of one assignment of a partition: when it ends, they are nobody's, and the messages run elsewhere."""

    def __init__(self) -> None:
        """None yet."""
        self._by_offset: dict[int, Produced] = {}

    def __len__(self) -> int:
        """Messages whose outputs are not sent."""
        return len(self._by_offset)

    def add(self, produced: Produced) -> None:
        """Keep them; messages may finish in any order."""
        self._by_offset[produced.offset] = produced

    def before(self, mark: int) -> list[Produced]:
        """What goes with a commit of this offset, in the order of the inputs. More would come again after a crash."""
        return [self._by_offset[offset] for offset in sorted(self._by_offset) if offset < mark]

    def drop_before(self, mark: int) -> None:
        """They are sent."""
        for produced in self.before(mark):
            del self._by_offset[produced.offset]

    def give_up(self, produced: Produced) -> None:
        """They will not be sent: there is a dead letter of their input instead."""
        del self._by_offset[produced.offset]

    def cap(self, mark: int) -> int:
        """How far a commit may go: not past a message whose outputs are refused."""
        now = time.monotonic()
        refused = (each.offset for each in self._by_offset.values() if each.refused_until > now)
        return min([mark, *refused])


def outputs_of(message: Message, value: Any) -> tuple[Output, ...]:
    """What the handler of `message` returned: None, a Message, or an iterable of them, in their order.

    An output without an id gets one that is the same whenever the handler runs again: the input's, and its number. It
    keeps the input's Kafka key, so what was in order stays in order; where there is none, its id is the key.

    Raises:
        OutputError: the value is something else, or cannot be sent.
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
    except Exception as error:  # an iterator's own, or a header that is no text
        raise OutputError(f"an output cannot be sent: {type(error).__name__}: {error}") from error


def _output(message: Message, output: Any, number: int) -> Output:
    if not isinstance(output, Message):
        raise _no_output(output)
    for name in output.headers:
        if not isinstance(name, str):
            raise OutputError(f"an output cannot be sent: a header's name is of type {type(name).__name__}")
    identity = _bytes(output.id) or b"%s/%d" % (_bytes(message.id) or b"", number)
    headers = encoded({**output.headers, KEY_HEADER: identity}.items())
    source = output.raw if isinstance(output.raw, KafkaMessage) else message.raw
    return Output(output.subject, output.body, source.key() or identity, headers)


def _no_output(value: Any) -> OutputError:
    return OutputError(
        "with semantics='exactly_once' a handler returns None, a Message, or a list of Messages to send, "
        f"not {type(value).__name__}"
    )


def _bytes(identity: str | bytes | None) -> bytes | None:
    return identity.encode() if isinstance(identity, str) else identity
