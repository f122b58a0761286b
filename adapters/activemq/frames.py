"""Messages from STOMP frames, and STOMP frames from messages."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode

from idempotent.adapters.activemq.options import dead_letters_of
from idempotent.adapters.copies import (
    KEY_HEADER,
    ONLY_HEADER,
    TIMESTAMP_HEADER,
    group_in,
    number_in,
    take_ours,
)
from idempotent.errors import AdapterError, UndecodableMessageError
from idempotent.logs import EventLog
from idempotent.message import Message, moment_of

log = EventLog(__name__)

DELAY_HEADER: Final = "AMQ_SCHEDULED_DELAY"
"""Milliseconds that the broker's scheduler delays a message. The scheduler removes the header."""
QUOTED_KEY_HEADER: Final = "x-idempotent-key-quoted"
"""The id in ASCII, if ActiveMQ would change it."""
_EXACT_HEADER: Final = "x-idempotent-exact"
"""The other headers that ActiveMQ changes, as they were: `name=value&name=value`, in ASCII.

What one line does not hold goes on in x-idempotent-exact-1, x-idempotent-exact-2 and so on.
"""
_GROUP: Final = "JMSXGroupID"
_GROUP_FOR_COPIES: Final = "x-idempotent-group"  # a STOMP consumer does not receive the group
_TYPE: Final = "amq-msg-type"
_TIME: Final = "timestamp"  # in milliseconds since 1970
# These say how a frame travels, or are the broker's notes about a message: no producer gave them to it. So no handler
# sees them, and none is sent: the broker or this adapter writes its own.
_OF_THE_BROKER: Final = frozenset(
    {
        *("ack", "subscription", "content-length", "redelivered", "destination", "message-id", "persistent"),
        *("receipt", _TIME, "transaction", "scheduledJobId", "JMSXUserID", DELAY_HEADER),
        # of a message that it has moved, or delivers again
        *("original-destination", "originalDeliveryMode", "originalExpiration"),
        *("dlqDeliveryFailureCause", "redeliveryDelay"),
    }
)
# What the broker writes where the producer gave none.
_DEFAULTS: Final = {"expires": "0", "priority": "4"}
_NOT_SENT: Final = _OF_THE_BROKER | {QUOTED_KEY_HEADER, _GROUP_FOR_COPIES}
# ActiveMQ makes two U+FFFD of a character beyond U+FFFF when it stores the message, and NUL would end the frame.
_CHANGED: Final = re.compile("[\0\ufffd\U00010000-\U0010ffff]")
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", ":": "\\c"})
# The limits of StompWireFormat, less the end of the line, and less the headers that are added to a frame; a character
# has up to four bytes, or two when it is escaped.
_LONGEST_LINE: Final = 10_200
_MOST_HEADERS: Final = 990
_PART: Final = _LONGEST_LINE - len(_EXACT_HEADER) - len("-999")
_SURELY_SHORT: Final = _LONGEST_LINE // 4 - 1


@dataclass(frozen=True, slots=True)
class Frame:
    """A STOMP frame. On sending, the connection adds transaction and receipt.

    Attributes:
        command: SEND, ACK, MESSAGE, ...
        headers: by name, unescaped.
        body: the payload.
    """

    command: str
    headers: Mapping[str, str]
    body: bytes = b""


def unreadable(frame: Frame) -> UndecodableMessageError | None:
    """Why the body of a message cannot be read; None: it can.

    ActiveMQ sends a MapMessage, ObjectMessage and StreamMessage exactly as an empty TextMessage.
    """
    if frame.body or "content-length" in frame.headers:
        return None
    is_kept = frame.headers.get("persistent") == "true"
    fate = (
        "moved the original to its own, ActiveMQ.DLQ" if is_kept else "dropped the original: not persistent"
    )
    return UndecodableMessageError(
        "STOMP carries no body of a JMS MapMessage, ObjectMessage or StreamMessage, and this is one, or is empty. The "
        f"broker {fate}. Let producers send TextMessage or BytesMessage; accept_empty=True takes it for an empty one"
    )


def place_of(destination: str) -> str:
    """A destination as a copy names it: in ASCII, because ActiveMQ changes other texts in headers."""
    return quote(destination, safe="/")


def ours_in(headers: dict[str, Any], destination: str, dead_of: Callable[[str], str]) -> Mapping[str, Any]:
    """Remove this library's headers from those of a MESSAGE frame, and return those that hold.

    Args:
        headers: of the frame.
        destination: where it was read.
        dead_of: the destination for the dead letters of a destination. The broker may have moved a copy there.
    """
    return take_ours(headers, place_of(destination), lambda place: place_of(dead_of(unquote(place))))


def group_that_reads(destination: str, group: str | None) -> str | None:
    """The group, if others may receive the same messages from this destination."""
    return group if destination.startswith("/topic/") else None


def only_for(frame: Frame, destination: str, dead_of: Callable[[str], str]) -> str | None:
    """The group that a MESSAGE frame is for; None: all that receive it."""
    if ONLY_HEADER not in frame.headers:
        return None
    return group_that_reads(
        destination, group_in(ours_in(dict(frame.headers), destination, dead_of), ONLY_HEADER)
    )


def message_of(
    frame: Frame,
    subject: str,
    destination: str,
    dead_of: Callable[[str], str] = dead_letters_of,
    *,
    redelivered: bool,
) -> Message:
    """The message of a MESSAGE frame. `redelivered` wins over the frame's own header if it is True."""
    headers = {
        name: value
        for name, value in frame.headers.items()
        if name not in _OF_THE_BROKER and name != _TYPE and _DEFAULTS.get(name) != value
    }
    group = headers.get(_GROUP_FOR_COPIES)
    ours = ours_in(headers, destination, dead_of)
    body = from_java(frame.body) if _type_of(frame) else frame.body
    if group is not None:
        headers[_GROUP] = group
    headers |= _exact(ours, headers)
    sent_at = number_in(ours, TIMESTAMP_HEADER) or number_in(frame.headers, _TIME)
    message_id = frame.headers.get("message-id")
    return Message(
        subject,
        body,
        id=_id_of(ours, message_id) or message_id,
        headers=headers,
        redelivered=redelivered or frame.headers.get("redelivered") == "true",
        position=message_id,
        raw=frame,
        timestamp=moment_of(sent_at) if sent_at else None,
    )


def kept_of(frame: Frame) -> Mapping[str, str]:
    """The headers of a copy that keep what the broker would set anew: text or bytes, and the time of sending."""
    sent_at = frame.headers.get(_TIME)
    return {**_type_of(frame), **({} if sent_at is None else {TIMESTAMP_HEADER: sent_at})}


def _type_of(frame: Frame) -> Mapping[str, str]:
    """The header that lets a copy of a received text be a JMS TextMessage, too; none for bytes."""
    is_text = "content-length" not in frame.headers or _is_text(frame.headers)
    return {_TYPE: "text"} if is_text else {}


def send_frame(
    destination: str, body: bytes | None, headers: Mapping[str, Any], delay_s: float = 0.0
) -> Frame:
    """A persistent message that the broker delays for `delay_s` seconds.

    Raises:
        AdapterError: STOMP cannot carry the id, which is not UTF-8, a message without a body, or a header without a
            name; or ActiveMQ does not read a header of that length, or so many.
    """
    if body is None:
        raise AdapterError("ActiveMQ has no tombstones: a message needs a body, if only an empty one")
    if "" in headers:
        # ActiveMQ closes the connection.
        raise AdapterError("STOMP cannot carry a header whose name is empty: give it a name, or leave it out")
    texts = {name: _as_text(value) for name, value in headers.items() if _is_sent(name)}
    sent = {name: _without_nul(text) for name, text in texts.items()}
    sent |= _identity(headers.get(KEY_HEADER))
    if is_text := _is_text(sent):
        body = to_java(body)
    sent |= {"destination": destination, "persistent": "true"}
    if body or not is_text:  # the broker would keep the length: a copy of an unreadable message must stay one
        sent["content-length"] = str(len(body))
    if _GROUP in sent:
        sent[_GROUP_FOR_COPIES] = sent[_GROUP]
    changed = {name: text for name, text in texts.items() if _CHANGED.search(text) and name != KEY_HEADER}
    exact = urlencode(changed, errors="replace")
    sent |= {_exact_name(at // _PART): exact[at : at + _PART] for at in range(0, len(exact), _PART)}
    if delay_s > 0:
        sent[DELAY_HEADER] = str(max(round(delay_s * 1000), 1))
    for name, value in sent.items():
        if len(name) + len(value) > _SURELY_SHORT:
            _demand_readable(name, value)
    if len(sent) > _MOST_HEADERS:
        raise AdapterError(
            f"ActiveMQ reads up to 1,000 headers, and this message has {len(headers):,}, which travel in "
            f"{len(sent):,}: send less, or send it in the body"
        )
    return Frame("SEND", sent, body)


def _demand_readable(name: str, value: str) -> None:
    """Refuse a header line that is too long: the broker would read what follows it, the body too, as new frames."""
    size = len(f"{name}:{value}".translate(_ESCAPES).encode())
    if size > _LONGEST_LINE:
        raise AdapterError(
            f"ActiveMQ reads headers of up to {_LONGEST_LINE:,} bytes, and {name[:100]!r} has {size:,}: send less, "
            "or send it in the body"
        )


def escaped_names(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers for stomp.py, which escapes values but not names."""
    return {name.translate(_ESCAPES): value for name, value in headers.items()}


def _is_text(headers: Mapping[str, str]) -> bool:
    return headers.get(_TYPE, "").lower() == "text"


def _as_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _without_nul(text: str) -> str:
    # NUL ends a frame, also in a header.
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _is_sent(name: str) -> bool:
    return name not in _NOT_SENT and not name.startswith(_EXACT_HEADER)


def _exact_name(part: int) -> str:
    return f"{_EXACT_HEADER}-{part}" if part else _EXACT_HEADER


def _exact(ours: Mapping[str, Any], received: Mapping[str, str]) -> dict[str, str]:
    """Headers as they were before ActiveMQ changed them. One that has got another value since keeps that."""
    parts = takewhile(bool, (str(ours.get(_exact_name(part), "")) for part in count()))
    exact = dict(parse_qsl("".join(parts)))
    return {name: text for name, text in exact.items() if _changed(text) == _changed(received.get(name, ""))}


def _changed(text: str) -> str:
    return _CHANGED.sub(lambda found: "\ufffd" * (1 + (found[0] > "\uffff")), text)


def _identity(identity: Any) -> dict[str, str]:
    """The headers with the id."""
    if identity is None:
        return {}
    try:
        text = identity.decode() if isinstance(identity, bytes) else str(identity)
        text.encode()
    except UnicodeError as error:
        raise AdapterError("STOMP cannot carry this id, which is not UTF-8") from error
    exact = {} if _survives(text) else {QUOTED_KEY_HEADER: quote(text, safe="")}
    return {KEY_HEADER: _without_nul(text), **exact}


def _id_of(ours: Mapping[str, Any], position: str | None) -> str | None:
    quoted = ours.get(QUOTED_KEY_HEADER)
    key = ours.get(KEY_HEADER)
    if quoted is not None:
        with contextlib.suppress(UnicodeDecodeError):
            return unquote(quoted, errors="strict")
    elif key is None or _survives(key):
        return None if key is None else str(key)
    # The broker stores this id as another text, possibly the same as for another id.
    log.warning("id_does_not_survive_activemq", extra={"position": position})
    return None


def _survives(text: str) -> bool:
    return _CHANGED.search(text) is None


_NUL: Final = b"\xc0\x80"
# Only texts with one of these differ: NUL and the characters beyond U+FFFF, which Java writes as two surrogates.
_JAVA_ONLY: Final = re.compile(rb"\xc0\x80|\xed[\xa0-\xbf]")
_UTF8_ONLY: Final = re.compile(rb"[\0\xf0-\xf4]")
_BEYOND: Final = re.compile("[\U00010000-\U0010ffff]")


def from_java(body: bytes) -> bytes:
    """UTF-8 from Java's form. Unchanged: UTF-8, and a text with half a surrogate pair, which UTF-8 does not have."""
    if _JAVA_ONLY.search(body) is None:
        return body
    try:
        units = (
            body.replace(_NUL, b"\0").decode("utf-8", "surrogatepass").encode("utf-16-le", "surrogatepass")
        )
        return units.decode("utf-16-le").encode()
    except UnicodeDecodeError:
        return body


def to_java(body: bytes) -> bytes:
    """Java's form of a UTF-8 text; a Java consumer cannot read the other form. Unchanged: a body that is not UTF-8."""
    if _UTF8_ONLY.search(body) is None:
        return body
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body
    return _BEYOND.sub(_as_surrogates, text).encode("utf-8", "surrogatepass").replace(b"\0", _NUL)


def _as_surrogates(found: re.Match[str]) -> str:
    high, low = divmod(ord(found[0]) - 0x10000, 0x400)
    return chr(0xD800 + high) + chr(0xDC00 + low)
