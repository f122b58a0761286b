"""Entry: one message on its way from a transaction to a broker."""

from __future__ import annotations

import hashlib
import os
import reprlib
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count
from threading import Lock
from typing import Final, TypeAlias
from weakref import ReferenceType

from sqlalchemy.orm import SessionTransaction

from idempotent.adapters.copies import without_ours
from idempotent.claims import Claim
from idempotent.errors import ConfigurationError
from idempotent.forks import free_in_child
from idempotent.message import Message
from idempotent.outbox.headers import encoded_headers
from idempotent.schema import DESTINATION_LENGTH, ID_LENGTH, LANE_BYTES
from idempotent.validation import seconds

BUCKETS: Final = 64
"""The parts of an outbox that relays share. All messages of an order key are in one."""

# Trace context differs with every attempt of a handler, and does not make another message.
_OF_A_TRACE: Final = frozenset({"traceparent", "tracestate", "baggage"})
# A claim is forgotten when so many younger ones have sent something.
_MOST_CLAIMS: Final = 100_000
# Of all outboxes of the process, as a handler may use several for one table: for each claim the copies of equal
# messages that are sent, by their content.
_copies: Final[OrderedDict[bytes, dict[bytes, set[int]]]] = OrderedDict()
_lock: Final = free_in_child(Lock())
# Weak: a Session that is dropped without close() must give its connection back.
Transactions: TypeAlias = tuple[ReferenceType[SessionTransaction], ...]


@dataclass(slots=True)
class Entry:
    """A message to publish.

    Attributes:
        message_id: its id, which is the same at each publication.
        destination: the name of the broker; empty: the relay's only one.
        subject: queue, destination or topic.
        order_key: messages of one order key are published in the order of their rows; None: in any order.
        headers: its headers, see `encoded_headers`; None: none.
        body: its payload; None: a tombstone.
        delay_us: microseconds to wait before it is published.
        copy: if its id is made of the content: which of the handler's messages with this content it is.
        copies: the copies of them that are sent.
        inside: the transactions of a Session that it belongs to, by weak references: the innermost savepoint first.
        written_inside: those in which it was written; empty: it was not.
    """

    message_id: str
    destination: str
    subject: str
    order_key: str | None
    headers: bytes | None
    body: bytes | None
    delay_us: int = 0
    copy: int = 0
    copies: set[int] = field(default_factory=set)
    inside: Transactions = ()
    written_inside: Transactions = ()


def lane_of(destination: str, order_key: str | None) -> bytes:
    """What is published one after the other: the hash of an order key, or a new lane for a message without one."""
    if order_key is None:  # nothing else may be in it, not even a message with the same id
        return os.urandom(LANE_BYTES)
    return _digest(destination.encode(), order_key.encode())


def bucket_of(lane: bytes) -> int:
    """The bucket of a lane, 0 to 63."""
    return lane[0] % BUCKETS


def entry_of(message: Message, destination: str, order_key: str | None, delay_s: float) -> Entry:
    """Check a message. One without an id gets a new one.

    Raises:
        ConfigurationError: a field is of another type or too long for its column. The message says which.
    """
    name = new_id() if message.id is None else demand_text(message.id, "the message's id", ID_LENGTH)
    demand_text(destination, "to", DESTINATION_LENGTH, empty=True)
    demand_text(message.subject, "the message's subject", ID_LENGTH)
    if order_key is not None:
        demand_text(order_key, "order_key", ID_LENGTH)
    return Entry(
        name,
        destination,
        message.subject,
        order_key,
        encoded_headers(without_ours(message.headers)),
        message.body,
        round(seconds(delay_s, "delay_s", zero=True) * 1_000_000),
    )


def derive_id(entry: Entry, claim: Claim, message: Message, dedup: str | None) -> None:
    """Give an entry that a leased handler sends its id: the same when the handler runs again.

    It is made of the key that the handler claimed and of `dedup`, or else of the content and of how many equal messages
    the handler has sent before: it is the id of the first copy which no open or committed transaction has, so that a
    copy which was rolled back and is sent again has the id of a run in which it was not. Never of the ordinal of a
    send: a second run that takes another path would send another content under an id that is already known, and the
    next consumer would drop it.

    Args:
        entry: what is sent.
        claim: of the handler.
        message: the same as the entry.
        dedup: the name that the handler gave it.

    Raises:
        ConfigurationError: the handler has used that name before.
    """
    if dedup is not None:
        parts = [b"dedup", dedup.encode()]
    else:
        headers = {
            name: each for name, each in without_ours(message.headers).items() if name not in _OF_A_TRACE
        }
        parts = [
            b"content",
            entry.destination.encode(),
            entry.subject.encode(),
            b"" if entry.order_key is None else b"+" + entry.order_key.encode(),
            encoded_headers(headers) or b"",
            b"" if entry.body is None else b"+" + entry.body,
        ]
    content = _digest(claim.key.hash, *parts)
    with _lock:
        entry.copies = _copies.setdefault(claim.owner, {}).setdefault(content, entry.copies)
        _copies.move_to_end(claim.owner)
        if dedup is not None and entry.copies:
            raise ConfigurationError(
                f"the handler has sent another message with dedup={dedup!r}: give each its own name"
            )
        entry.copy = next(number for number in count() if number not in entry.copies)
        entry.copies.add(entry.copy)
        while len(_copies) > _MOST_CLAIMS:
            _copies.popitem(last=False)
    if dedup is None:
        parts.append(str(entry.copy).encode())
    entry.message_id = _digest(claim.key.hash, *parts).hex()


def new_id() -> str:
    """A UUID of version 7 (RFC 9562): ids of one process and millisecond aside, in the order of their time."""
    milliseconds = time.time_ns() // 1_000_000
    bits = (milliseconds << 80 | int.from_bytes(os.urandom(10))) & ~(0xF << 76) & ~(0x3 << 62)
    text = f"{bits | 0x7 << 76 | 0x2 << 62:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def demand_text(given: object, name: str, longest: int, *, empty: bool = False) -> str:
    """A text that fits into a column of so many characters.

    Raises:
        ConfigurationError: it is not a string, is empty or too long, or has characters that a database cannot store.
    """
    if isinstance(given, str) and (given or empty) and len(given) <= longest and _is_storable(given):
        return given
    length = f" of {len(given)} characters" if isinstance(given, str) and len(given) > longest else ""
    raise ConfigurationError(
        f"{name} must be a string of {0 if empty else 1} to {longest} characters, without NUL and half surrogates, "
        f"not {reprlib.repr(given)}{length}"
    )


def _is_storable(text: str) -> bool:
    if "\0" in text:
        return False
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _digest(*parts: bytes) -> bytes:
    framed = b"".join([len(part).to_bytes(8) + part for part in parts])
    return hashlib.blake2b(framed, digest_size=LANE_BYTES).digest()
