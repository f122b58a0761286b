"""Key: what makes two deliveries "the same", exactly. Functions for `key=` and `fingerprint=`, ready made."""

from __future__ import annotations

import hashlib
import json as json_text
from collections.abc import Callable, Mapping
from datetime import date, time
from decimal import Decimal
from typing import Any, Final, NamedTuple, NoReturn, Protocol
from urllib.parse import unquote_to_bytes
from uuid import UUID

HASH_BYTES: Final = 20
TEXT_LIMIT: Final = 255
_SEPARATOR: Final = ":"
# Text longer than the column ends in a mark and the hash, so that the texts of two long keys differ.
_MARK: Final = "~"
SHOWN: Final = TEXT_LIMIT - 2 * HASH_BYTES - len(_MARK)
"""How many characters of a long text are kept before the mark and the hash."""
# The end of a consumer's name that was too long: this, and its hash.
_CUT_NAME: Final = f"{_SEPARATOR}{_MARK}"
# A character has at most four bytes, and the readable text needs only the part of a 1 MB id that fits the column.
_READ_BYTES: Final = 4 * (TEXT_LIMIT + 1)
_tuple: Final = tuple.__new__
# Python refuses to write larger numbers in decimal.
_MOST_BITS: Final = 4096


class Key(NamedTuple):
    """A message's identity, as an exact hash and as readable text.

    Attributes:
        hash: blake2b-160 over the length-prefixed parts. Stores compare only this field.
        text: `subject:group:id`, printable, at most 255 characters; for people and logs.
    """

    hash: bytes
    text: str

    @property
    def token(self) -> str:
        """The hash in hex: short, ASCII, safe for an HTTP `Idempotency-Key` header."""
        return self.hash.hex()

    @property
    def consumer(self) -> str:
        """The name of the consumer, `subject:group`; see `KeySpace.name`."""
        return consumer_in(self.text)

    def __str__(self) -> str:
        return self.text


NO_KEY: Final = Key(b"", "")
"""Stands in a claim whose handler runs without a key; no message has it."""


class KeySpace:
    """The keys of one consumer: everything under one subject and group.

    Args:
        subject: the consumer's subject.
        group: the consumer's group. Two groups of one subject each process every message once.

    Attributes:
        name: the consumer's name, `subject:group`, printable; one of more than `SHOWN` characters ends in a hash.
    """

    __slots__ = ("_head", "_prefix", "name")

    def __init__(self, subject: str, group: str) -> None:
        """Hash the part that all keys share, once."""
        self._prefix = hashlib.blake2b(_framed(subject) + _framed(group), digest_size=HASH_BYTES)
        name = _SEPARATOR.join(_readable(_encoded(part), _SEPARATOR) for part in (subject, group))
        self._head = f"{name}{_SEPARATOR}"
        if len(name) > SHOWN:
            # A key's text is cut after `SHOWN` characters, and must still show which consumer it belongs to.
            tail = _CUT_NAME + self._prefix.hexdigest()
            name = name[: SHOWN - len(tail)].replace(_SEPARATOR, _MARK) + tail
            self._head = name.ljust(TEXT_LIMIT + 1)  # so that every text is cut: it shows no id
        self.name: Final = name

    def key(self, message_id: str | bytes) -> Key:
        """The key of one message id. Text and its UTF-8 bytes are the same id; all other differences count."""
        data = _encoded(message_id)
        digest = self._prefix.copy()
        digest.update(len(data).to_bytes(8) + data)
        hashed = digest.digest()
        if isinstance(message_id, str) and _is_plain(message_id):
            readable = message_id
        else:
            readable = _readable(data[:_READ_BYTES], "")
        text = self._head + readable
        if len(text) >= TEXT_LIMIT and (len(text) > TEXT_LIMIT or _looks_cut(text)):
            text = f"{text[:SHOWN]}{_MARK}{hashed.hex()}"
        return _tuple(Key, (hashed, text))  # half the time of Key(), and every message needs a key


def id_of(value: object, what: str) -> str | bytes:
    """The text or the bytes of an id: of an int its digits, of a UUID its 36 characters in lower case.

    Args:
        value: the id.
        what: what it is, for the error: `"a key"`.

    Raises:
        TypeError: another type, or an int of more than 4096 bits.
    """
    if isinstance(value, (str, bytes)):
        return value
    if isinstance(value, UUID):
        return str(value)
    # 0 is an id: databases begin to count there.
    if isinstance(value, bool) or not isinstance(value, int) or value.bit_length() > _MOST_BITS:
        raise TypeError(f"{what} must be str, bytes, int or UUID, not {type(value).__name__}")
    return f"{value:d}"


def consumer_in(text: str) -> str:
    """The consumer's name, `KeySpace.name`, in the readable text of a key."""
    return _SEPARATOR.join(text[:SHOWN].split(_SEPARATOR, 2)[:2])


def id_in(text: str) -> str:
    """The id in the readable text of a key, as far as the text shows it."""
    return text.split(_SEPARATOR, 2)[-1]


def hash_in(text: str) -> bytes | None:
    """The hash at the end of a text that was cut, or of its id; None: it was not cut."""
    digits = text.rpartition(_MARK)[2]
    try:
        return bytes.fromhex(digits) if len(digits) == 2 * HASH_BYTES else None
    except ValueError:
        return None


def _encoded(part: str | bytes) -> bytes:
    # surrogatepass: an id with a lone surrogate is valid, and differs from every other id.
    return part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")


def _framed(part: str) -> bytes:
    data = _encoded(part)
    return len(data).to_bytes(8) + data


def _looks_cut(text: str) -> bool:
    return len(text) == TEXT_LIMIT and text[SHOWN] == _MARK


def _is_plain(text: str) -> bool:
    return text.isprintable() and "%" not in text


def _readable(part: bytes, separator: str) -> str:
    """Printable text that identifies the part: control characters, '%' and the separator are escaped."""
    text = part.decode("utf-8", "surrogateescape")
    if _is_plain(text) and not (separator and separator in text):
        return text
    return "".join(
        char if char.isprintable() and char not in ("%", separator) else _escaped(char) for char in text
    )


def _escaped(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogateescape"))


def key_from_text(text: str) -> Key | None:
    """The key of a readable text; None when the text is not that of a key.

    A 40-digit hex hash is accepted too; it becomes the text of the key.
    """
    if len(text) == 2 * HASH_BYTES and _SEPARATOR not in text:
        try:
            return Key(bytes.fromhex(text), text)
        except ValueError:
            return None
    if _looks_cut(text):
        try:
            return Key(bytes.fromhex(text[SHOWN + len(_MARK) :]), text)
        except ValueError:
            return None
    parts = text.split(_SEPARATOR, 2)
    if len(parts) != 3:  # noqa: PLR2004 - subject, group, id
        return None
    return _space_of(parts[0], parts[1]).key(unquote_to_bytes(parts[2]))


def consumer_named(name: str) -> str | None:
    """The name of a consumer, `KeySpace.name`, that a person wrote as `subject:group`; None: not of this form."""
    if _is_cut(name):
        return name
    space = space_named(name)
    return None if space is None else space.name


def space_named(name: str) -> KeySpace | None:
    """The keys of a consumer that a person wrote as `subject:group`; None: not of this form, or cut to a hash."""
    subject, _, group = name.partition(_SEPARATOR)
    if not subject or not group or _SEPARATOR in group or _is_cut(name):
        return None
    try:
        return _space_of(subject, group)
    except UnicodeError:
        return None  # %XX, or a byte on the command line, that is not UTF-8


def _is_cut(name: str) -> bool:
    """Whether a consumer's name ends in a hash, because it was too long."""
    return len(name) == SHOWN and name[: -2 * HASH_BYTES].endswith(_CUT_NAME)


def _space_of(subject: str, group: str) -> KeySpace:
    """The key space of a subject and a group as they are shown."""
    return KeySpace(*(unquote_to_bytes(part).decode("utf-8", "surrogatepass") for part in (subject, group)))


class Delivered(Protocol):
    """What the functions below read of a Message."""

    @property
    def id(self) -> str | bytes | None:
        """Its id."""

    @property
    def key(self) -> bytes | None:
        """Its record key."""

    @property
    def body(self) -> bytes | None:
        """Its body."""

    @property
    def headers(self) -> Mapping[str, Any]:
        """Its headers."""

    @property
    def redelivered(self) -> bool:
        """The broker's hint."""

    def json(self) -> Any:
        """The body as JSON."""


def header(name: str) -> Callable[[Delivered], Any]:
    """`key=header("payment-id")`: the value of a header. A message without it has no key."""
    return lambda message: message.headers[name]


def json(path: str) -> Callable[[Delivered], Any]:
    """`key=json("order.id")`: a field of a JSON body, by the names on the way to it; of a list by its number.

    A message without the field, or with null there, has no key. One whose body is no JSON, or that has something else
    than a text or a whole number there, is rejected.
    """
    names = path.split(".")

    def of(message: Delivered) -> Any:
        value = message.json()
        for name in names:
            if isinstance(value, list) and name.isdecimal():
                value = value[int(name)]
            elif isinstance(value, dict):
                value = value[name]
            else:
                raise KeyError(name)
        return value

    return of


# As the bindings for Kafka, HTTP and AMQP write them: https://github.com/cloudevents/spec
_EVENT_PREFIXES: Final = ("ce_", "ce-", "cloudevents:", "cloudevents_")


def cloudevents(message: Delivered) -> str:
    """`key=cloudevents`: source and id, which together name a CloudEvent, in binary or structured mode.

    Raises:
        LookupError: it has no source or no id.
        ValueError: its source has a space, and is no URI.
    """
    event: Any = {name.lower(): value for name, value in message.headers.items()}
    prefix = next((each for each in _EVENT_PREFIXES if f"{each}id" in event), None)
    if prefix is None:
        prefix, event = "", message.json()
    source, number = (event[f"{prefix}{name}"] for name in ("source", "id"))
    if source in (None, "", b"") or number in (None, "", b""):
        raise LookupError("a CloudEvent has a source and an id")
    source, number = _text_of(source), _text_of(number)
    if " " in source:
        raise ValueError("the source of a CloudEvent is a URI, and has no space")
    return f"{source} {number}"


def debezium(message: Delivered) -> Any:
    """`key=debezium`: the id of an event of the outbox router; else key, place in the log and operation of a change.

    Without a record key, as of a table without a primary key, it is the message's id: all rows of a snapshot have one
    place in the log.

    Raises:
        LookupError: it is neither.
    """
    if "id" in message.headers:
        return message.headers["id"]
    if message.body is None or message.key is None:
        return message.id  # of a tombstone, which repeats the deletion before it
    event = message.json()
    event = event.get("payload", event)  # with `schemas.enable` the change is inside
    source = event["source"]
    place = (source["lsn"],) if "lsn" in source else (source["file"], source["pos"], source.get("row", 0))
    return " ".join(map(str, (repr(message.key), *place, event["op"])))


celery: Final = header("id")
"""`key=celery`: the id of a task of Celery, which its second protocol has in the headers."""


def canonical_json(*args: Any, **kwargs: Any) -> bytes:
    """`fingerprint=canonical_json`: equal for equal JSON, however it is spaced and in whatever order its fields are.

    Of a message its body; of an `@idempotent` function its arguments, in which dates, Decimals and UUIDs may stand. A
    number is its value, exactly: 5.0 is 5, and no digit is rounded away. So this is not RFC 8785.

    Raises:
        ValueError: the body is no JSON, or a number is NaN or infinite.
        TypeError: an argument is neither JSON nor one of these.
    """
    if len(args) == 1 and not kwargs and hasattr(args[0], "redelivered"):
        body = args[0].body
        numbers: Any = {"parse_float": _Digits, "parse_int": _Digits, "parse_constant": _refuse}
        value = None if body is None else json_text.loads(body, **numbers)
    else:
        value = [args, kwargs]
    return json_text.dumps(_plain(value), sort_keys=True, separators=(",", ":")).encode()


class _Digits(str):
    """A number as it was written."""

    __slots__ = ()


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


def _plain(value: Any) -> Any:
    """Lists and numbers as lists with a mark, so that no text looks like a number."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, _Digits):
        return ["n", _exact(value)]
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float, Decimal)):
        return ["n", _exact(str(value))]
    if isinstance(value, (list, tuple)):
        return ["l", *map(_plain, value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (date, time, UUID)):
        return str(value)
    raise TypeError(
        f"a {type(value).__name__} is not JSON: give fingerprint= a function of what must be equal"
    )


def _exact(text: str) -> str:
    """A decimal number without the zeros that do not count: `50.0` and `5e1` are `5e1`."""
    mantissa, _, power = text.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    if digits and not digits.isdecimal():
        raise ValueError(f"{text} is no JSON")
    counted = digits.rstrip("0")
    exponent = int(power or 0) - len(fraction) + len(digits) - len(counted)
    sign = "-" if text.startswith("-") else ""
    return f"{sign}{counted}e{exponent}" if counted else "0"


def _text_of(value: object) -> str:
    text = id_of(value, "a part of a key")
    return text if isinstance(text, str) else text.decode()
