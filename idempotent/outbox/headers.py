"""The headers of a message as the outbox stores them: all that a broker's client reads comes back as it was.

JSON has no bytes, times, decimals or NaN, and only texts as names. Each of these is an object with one name, such as
`{"$bytes": ...}`.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from idempotent.errors import ConfigurationError

_BYTES: Final = "$bytes"
_TIME: Final = "$datetime"
_DECIMAL: Final = "$decimal"
_FLOAT: Final = "$float"
# A dict as a list of pairs: one with other names than texts, or one that would be taken for one of these objects.
_DICT: Final = "$dict"
_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    _BYTES: base64.b64decode,
    _TIME: datetime.fromisoformat,
    _DECIMAL: Decimal,
    _FLOAT: float,
    _DICT: dict,
}
_UNENCODABLE: Final = (TypeError, ValueError, RecursionError)


def encoded_headers(headers: Mapping[Any, Any]) -> bytes | None:
    """Headers as JSON, in the order of their names; None if the message has no headers.

    Raises:
        ConfigurationError: a name or a value of another type, or a text that UTF-8 does not have. It says which header.
    """
    if not headers:
        return None
    for name in headers:
        if not isinstance(name, (str, bytes)):
            raise ConfigurationError(f"the header name {name!r} is not a string")
    try:
        return _encoded({name: headers[name] for name in sorted(headers, key=repr)})
    except _UNENCODABLE as error:
        name, cause = _refused(headers, error)
        raise ConfigurationError(
            f"the header {name!r} cannot be stored: {cause}. Make it a string, bytes, number, Decimal, datetime, "
            "boolean, None, or a list or dict of these, or leave it out"
        ) from error


def decoded_headers(stored: bytes | None) -> dict[Any, Any]:
    """The headers that `encoded_headers` encoded."""
    if stored is None:
        return {}
    decoded: dict[Any, Any] = json.loads(stored, object_hook=_original)
    return decoded


def _encoded(headers: Mapping[Any, Any]) -> bytes:
    return json.dumps(_plain(headers), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _refused(headers: Mapping[Any, Any], error: Exception) -> tuple[Any, Exception]:
    """The first header that cannot be encoded by itself, and why."""
    for name, value in headers.items():
        try:
            _encoded({name: value})
        except _UNENCODABLE as cause:
            return name, cause
    return [*headers], error  # only together they are too deep for this stack


def _plain(given: Any) -> Any:
    """What JSON has for it. Others stay, and JSON refuses them."""
    if isinstance(given, (bytes, bytearray, memoryview)):
        return {_BYTES: base64.b64encode(bytes(given)).decode()}
    if isinstance(given, datetime):
        return {_TIME: given.isoformat()}
    if isinstance(given, Decimal):
        return {_DECIMAL: str(given)}
    if isinstance(given, float) and not math.isfinite(given):
        return {_FLOAT: repr(given)}
    if isinstance(given, Mapping):
        named = {name: _plain(each) for name, each in given.items()}
        if all(isinstance(name, str) for name in named) and not _stands_for_another(named):
            return named
        return {_DICT: [[_plain(name), each] for name, each in named.items()]}
    if isinstance(given, (list, tuple)):
        return [_plain(each) for each in given]
    return given


def _original(found: dict[str, Any]) -> Any:
    if _stands_for_another(found):
        ((kind, text),) = found.items()
        return _READERS[kind](text)
    return found


def _stands_for_another(found: Mapping[str, Any]) -> bool:
    return len(found) == 1 and not found.keys().isdisjoint(_READERS)
