"""Reading the properties of a message, also those that pika cannot decode."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

from idempotent.adapters.rabbitmq.client import pika, pika_data, pika_errors, pika_frame, pika_long

UNDECODABLE: Final = (
    *(ArithmeticError, ValueError, TypeError, LookupError, OSError, RecursionError),
    *(struct.error, pika_errors.AMQPError),
)
"""What pika raises for a value that it cannot decode, for example a timestamp after the year 9999."""

# A frame: its type, channel and size, its content, one byte at its end. A header frame: class, weight, size of the
# body, and the properties.
_FRAME: Final = struct.Struct(">BHI")
_HEADER: Final = struct.Struct(">HHQ")
_HEADER_TYPE: Final = 2
_SIZE: Final = struct.Struct(">I")
_FLAGS: Final = struct.Struct(">H")
_MORE_FLAGS: Final = 1
_BEFORE_HEADERS: Final = (1 << 15, 1 << 14)  # content_type, content_encoding
_HAS_HEADERS: Final = 1 << 13
_FIXED_SIZES: Final = {
    **dict.fromkeys((b"t", b"b", b"B"), 1),
    **dict.fromkeys((b"U", b"u", b"s"), 2),
    **dict.fromkeys((b"I", b"i", b"f"), 4),
    **dict.fromkeys((b"L", b"l", b"d", b"T"), 8),
    b"D": 5,
    b"V": 0,
}
_SIZED: Final = frozenset((b"S", b"x", b"A", b"F"))
_FLOATS: Final = {b"f": struct.Struct(">f"), b"d": struct.Struct(">d")}


class TolerantConnection(pika.SelectConnection):  # type: ignore[misc] # pika has no types here
    """A connection that survives a message whose properties pika cannot decode: `fault_in` tells which.

    It also gives headers with floating-point numbers their values, which pika cuts to whole numbers: two ids, 1.2 and
    1.7, would be one. Numbers in lists and tables stay cut.
    """

    def _read_frame(self) -> tuple[int, Any]:
        try:
            frame: tuple[int, Any] = super()._read_frame()
        except UNDECODABLE:
            kind, channel, size = _FRAME.unpack_from(self._frame_buffer)
            if kind != _HEADER_TYPE:
                raise
            content = self._frame_buffer[_FRAME.size : _FRAME.size + size]
            _, _, body_size = _HEADER.unpack_from(content)
            header = pika_frame.Header(channel, body_size, readable_properties(content[_HEADER.size :]))
            return _FRAME.size + size + 1, header
        if isinstance(frame[1], pika_frame.Header) and _may_have_floats(frame[1].properties.headers):
            _restore_floats(
                frame[1].properties, self._frame_buffer[_FRAME.size + _HEADER.size : frame[0] - 1]
            )
        return frame


class ReadableProperties(pika.BasicProperties):  # type: ignore[misc] # pika has no types here
    """Properties of which a part could not be decoded; a header among that part has its encoded bytes as its value.

    Attributes:
        fault: which part, and why.
    """

    fault: str = ""


def readable_properties(encoded: bytes) -> ReadableProperties:
    """As much of encoded properties as can be decoded."""
    properties = ReadableProperties()
    try:
        start, end = _header_table(encoded)
        # All but the headers, which are replaced by an empty table.
        properties.decode(encoded[:start] + _SIZE.pack(0) + encoded[end:])
        properties.headers = {}
        for name, value in _entries(encoded[start + _SIZE.size : end]):
            try:
                properties.headers[name] = _value(value)
            except UNDECODABLE as error:
                properties.headers[name] = value
                properties.fault = properties.fault or f"header {name!r}: {_why(error)}"
    except UNDECODABLE as error:
        properties.fault = properties.fault or f"properties: {_why(error)}"
    return properties


def fault_in(properties: Any) -> str | None:
    """Why a part of a message's properties could not be decoded; None: all of it was."""
    return properties.fault if isinstance(properties, ReadableProperties) else None


def _may_have_floats(headers: Mapping[str, Any] | None) -> bool:
    """Whether pika read one of its long numbers, which floating-point numbers are to it as well."""
    return headers is not None and any(type(value) is pika_long for value in headers.values())


def _restore_floats(properties: Any, encoded: bytes) -> None:
    start, end = _header_table(encoded)
    for name, value in _entries(encoded[start + _SIZE.size : end]):
        if value[:1] in _FLOATS:
            properties.headers[name] = _value(value)


def _value(encoded: bytes) -> Any:
    kind = _FLOATS.get(encoded[:1])
    return pika_data.decode_value(encoded, 0)[0] if kind is None else kind.unpack_from(encoded, 1)[0]


def _header_table(encoded: bytes) -> tuple[int, int]:
    """Where the table of headers begins, with its size, and where it ends."""
    (flags,) = _FLAGS.unpack_from(encoded)
    start = _FLAGS.size
    more = flags
    while more & _MORE_FLAGS:
        (more,) = _FLAGS.unpack_from(encoded, start)
        start += _FLAGS.size
    if not flags & _HAS_HEADERS:
        raise ValueError("the properties have no table of headers")
    for flag in _BEFORE_HEADERS:
        if flags & flag:
            start += 1 + encoded[start]
    (size,) = _SIZE.unpack_from(encoded, start)
    return start, start + _SIZE.size + size


def _entries(table: bytes) -> Iterator[tuple[str | bytes, bytes]]:
    """The names of a table and their encoded values. A value of an unknown type is the rest of the table."""
    offset = 0
    while offset < len(table):
        name, offset = pika_data.decode_short_string(table, offset)
        kind = table[offset : offset + 1]
        if kind in _SIZED:
            end = offset + 1 + _SIZE.size + _SIZE.unpack_from(table, offset + 1)[0]
        else:
            end = offset + 1 + _FIXED_SIZES.get(kind, len(table))
        yield name, table[offset:end]
        offset = end


def _why(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
