"""Codecs: how the result of a function is stored, and given to its duplicates as it was.

A codec never changes a value: what it cannot give back equal is refused when it is stored. None of them is pickle,
whose readers run what anybody wrote into the store.
"""

from __future__ import annotations

import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

from idempotent.errors import ConfigurationError, MissingExtraError, ResultNotStoredError, described

__all__ = ["BytesCodec", "Codec", "Framed", "JsonCodec", "TypedCodec", "codec_for"]

_PLAIN: Final = frozenset({type(None), bool, int, float, str})
_JSON: Final = (None, type(None), bool, int, float, str, list, dict, Any, object)
_LONGEST_NAME: Final = 100
_END: Final = b"\0"
_BY_IDENTITY: Final[Any] = object.__eq__

compact: Final[Callable[[Any], str]] = json.JSONEncoder(separators=(",", ":")).encode
"""JSON without spaces; `json.dumps` with separators makes an encoder for each value."""


class Codec(Protocol):
    """Stores results, and reads them again. Give an object of your own as `codec=`.

    Attributes:
        name: stored with each result, such as `orders/2`. A result of another name is not read: change it when an
            earlier one can no longer be read.
    """

    @property
    def name(self) -> str:
        """See above."""

    def encode(self, value: Any, /) -> bytes:
        """What is stored. An exception: it is not stored, and later calls raise `ResultNotStoredError`."""

    def decode(self, data: bytes, /) -> Any:
        """The value again. An exception: `ResultNotStoredError`."""


class JsonCodec:
    """JSON, for values that it does not change: None, bool, int, float, str, and lists and dicts of these.

    A tuple, a dict with other keys than str, NaN, an Enum or another subclass is refused.
    """

    name: Final = "json/1"

    def encode(self, value: Any) -> bytes:
        """The value as JSON.

        Raises:
            ValueError: JSON would change it.
        """
        encoded = compact(value).encode()  # first: it refuses a circle, and endless depth
        waiting = [value]
        while waiting:
            each = waiting.pop()
            kind = type(each)
            if kind is dict:
                for key in each:
                    if type(key) is not str:
                        raise ValueError(f"JSON changes keys of a dict that are {type(key).__name__}")
                waiting += each.values()
            elif kind is list:
                waiting += each
            elif kind not in _PLAIN or (kind is float and not math.isfinite(each)):
                raise ValueError(f"JSON changes a {kind.__name__}; annotate what the function returns")
        # Two surrogates are read as one character.
        if b"\\ud" in encoded and self.decode(encoded) != value:
            raise ValueError("JSON changes a text with surrogates")
        return encoded

    def decode(self, data: bytes) -> Any:
        """The value again."""
        return json.loads(data)


class BytesCodec:
    """Bytes as they are."""

    name: Final = "bytes/1"

    def encode(self, value: Any) -> bytes:
        """The value.

        Raises:
            TypeError: it is not bytes.
        """
        if type(value) is not bytes:
            raise TypeError(f"the function is annotated with bytes, and returned a {type(value).__name__}")
        return value

    def decode(self, data: bytes) -> Any:
        """The value again."""
        return data


class TypedCodec:
    """JSON by msgspec for an annotation: dataclasses, pydantic models, Structs, TypedDicts, dates, Decimal, UUID, sets.

    The name of the type is not stored, so a class may be renamed. One that has changed reads earlier results as far as
    its fields have defaults.

    Args:
        annotation: the type of the values.

    Raises:
        ConfigurationError: a type that msgspec does not know.
        MissingExtraError: msgspec is not installed.
    """

    name: Final = "typed/1"

    def __init__(self, annotation: Any) -> None:
        """Make the encoder and the decoder."""
        self._read = json_reader(annotation, _to_model)
        import msgspec

        self._encoder = msgspec.json.Encoder(enc_hook=_of_model)

    def encode(self, value: Any) -> bytes:
        """The value as JSON, if the same value can be read again.

        Raises:
            ValueError: another one would be read, such as a list for a tuple in an `Any`.
            TypeError: it is not of the annotated type.
        """
        encoded: bytes = self._encoder.encode(value)
        try:
            again = self._read(encoded)
        except Exception as error:
            raise TypeError(f"a {type(value).__name__} is not of the annotated type") from error
        if not _is_same(value, again):
            raise ValueError(f"a {type(value).__name__} would not be read as it was")
        return encoded

    def decode(self, data: bytes) -> Any:
        """The value again."""
        return self._read(data)


def json_reader(annotation: Any, to_model: Callable[[Any, Any], Any]) -> Callable[[bytes], Any]:
    """What reads JSON as the type of an annotation, by msgspec.

    Args:
        annotation: the type.
        to_model: makes a model of pydantic, of its class and what JSON has.

    Raises:
        ConfigurationError: a type that msgspec does not know.
        MissingExtraError: msgspec is not installed.
    """
    try:
        import msgspec
    except ImportError as error:
        raise MissingExtraError("msgspec", "codecs") from error
    try:
        customs = (
            each.cls
            for each in types_in(msgspec.inspect.type_info(annotation))
            if isinstance(each, msgspec.inspect.CustomType)
        )
        unknown = next((kind for kind in customs if not hasattr(kind, "model_validate")), None)
        read: Callable[[bytes], Any] = msgspec.json.Decoder(annotation, dec_hook=to_model).decode
    except (TypeError, NameError, ValueError) as error:
        raise ConfigurationError(f"no codec stores {annotation!r}: {error}") from error
    if unknown is not None:
        raise ConfigurationError(f"no codec stores {unknown!r}")
    return read


class Framed:
    """A codec, with its name before what it stores. A NUL comes first, which no JSON begins with.

    Raises:
        ConfigurationError: an object without a name, `encode` and `decode`.
    """

    def __init__(self, codec: Codec) -> None:
        """Check the codec."""
        name = getattr(codec, "name", None)
        complete = callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None))
        if isinstance(codec, type) or not complete or not isinstance(name, str):
            raise ConfigurationError(
                f"codec takes an object with name, encode(value) and decode(data), not {codec!r}; see idempotent.codecs"
            )
        if not name.isprintable() or not name.isascii() or not 0 < len(name) <= _LONGEST_NAME:
            raise ConfigurationError(
                f"the name of a codec is 1 to {_LONGEST_NAME} printable ASCII characters, not {name!r}"
            )
        self._codec = codec
        self._head = _END + name.encode() + _END

    def encode(self, value: Any) -> bytes:
        """What is stored of a value. Raises what the codec raises."""
        encoded = self._codec.encode(value)
        if not isinstance(encoded, bytes):
            raise TypeError(f"the codec {self._codec.name} made a {type(encoded).__name__}, not bytes")
        return self._head + encoded

    def decode(self, data: bytes) -> Any:
        """The value again.

        Raises:
            ResultNotStoredError: another codec has stored it, or this one cannot read it any more.
        """
        if not data.startswith(self._head):
            raise ResultNotStoredError(f"the result was stored by another codec than {self._codec.name}")
        try:
            return self._codec.decode(data[len(self._head) :])
        except Exception as error:
            raise ResultNotStoredError(f"the stored result cannot be read: {type(error).__name__}") from error


def codec_for(function: Callable[..., Any]) -> Codec:
    """The codec for what a function returns, by its annotation: `bytes`, what JSON has, or a type that msgspec knows.

    Raises:
        ConfigurationError: a type that no codec stores, or a name that only a type checker can read.
        MissingExtraError: the type needs msgspec, which is not installed.
    """
    annotation = _returned_by(function)
    if annotation is bytes:
        return BytesCodec()
    if _is_json(annotation):
        return JsonCodec()
    try:
        return TypedCodec(annotation)
    except ConfigurationError as error:
        if isinstance(error, MissingExtraError):
            raise
        raise ConfigurationError(
            f"{_name_of(function)} is annotated with a result that cannot be stored for later calls: {error}. Return a "
            "dataclass, a pydantic model or plain values, or give codec="
        ) from error


def _returned_by(function: Callable[..., Any]) -> Any:
    annotation = inspect.signature(function).return_annotation
    if annotation is inspect.Signature.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    try:
        return read_annotation(function, annotation)
    except Exception as error:
        raise ConfigurationError(
            f"{_name_of(function)} returns {annotation}, which cannot be read ({described(error)}): import the name "
            "at run time, not under TYPE_CHECKING, and define it at the top of a module; or give codec="
        ) from error


def read_annotation(function: Callable[..., Any], text: str) -> Any:
    """The type that the text of an annotation of a function names. Raises any exception if it cannot be read."""
    code = inspect.unwrap(getattr(function, "func", function))
    where = getattr(code, "__globals__", None) or getattr(type(code).__call__, "__globals__", {})
    holder: Any = types.SimpleNamespace(__annotations__={"text": text})
    return typing.get_type_hints(holder, where, include_extras=True)["text"]


def _name_of(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", function))


def _is_json(annotation: Any) -> bool:
    """Whether values of this type are what JSON has, as they are."""
    origin = typing.get_origin(annotation)
    if origin is None:
        return any(annotation is each for each in _JSON)
    arguments = typing.get_args(annotation)
    if origin is typing.Annotated:
        return _is_json(arguments[0])
    if origin is dict:
        return arguments[0] is str and _is_json(arguments[1])
    return origin in (list, typing.Union, types.UnionType) and all(map(_is_json, arguments))


def types_in(node: Any) -> Iterator[Any]:
    """What msgspec says of a type, and of each type in it."""
    import msgspec

    waiting, seen = [node], set[int]()
    while waiting:
        each = waiting.pop()
        if isinstance(each, (tuple, list)):
            waiting += each
        elif isinstance(each, msgspec.Struct) and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [getattr(each, name) for name in each.__struct_fields__]


def _is_same(value: Any, again: Any) -> bool:
    """Whether two values, and all in them, are of the same types and equal. Not every class compares its objects."""
    waiting = [(value, again)]
    while waiting:
        one, other = waiting.pop()
        kind = type(one)
        if kind is not type(other):
            return False
        if isinstance(one, (list, tuple)):
            if len(one) != len(other):
                return False
            waiting += zip(one, other, strict=True)
        elif isinstance(one, dict):
            if one.keys() != other.keys():
                return False
            waiting += [(each, other[key]) for key, each in one.items()]
        elif names := getattr(kind, "__dataclass_fields__", None) or getattr(kind, "__struct_fields__", None):
            waiting += [(getattr(one, name), getattr(other, name)) for name in names]
        elif hasattr(kind, "model_fields"):
            waiting += [(_fields_of(one), _fields_of(other))]
        elif getattr(kind, "__eq__", None) is _BY_IDENTITY:
            if one is not other:
                waiting.append((vars(one), vars(other)))
        elif one != other or getattr(one, "fold", 0) != getattr(other, "fold", 0):
            return False
    return True


def _fields_of(model: Any) -> list[Any]:
    """All that a model of pydantic holds."""
    return [vars(model), model.__pydantic_extra__, model.__pydantic_private__]


def _of_model(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"a {type(value).__name__} is not of the annotated type")
    return dump(mode="json", by_alias=False)


def _to_model(kind: Any, value: Any) -> Any:
    # By the names of the fields, as it was written. pydantic before 2.11 has no such option.
    names = {"by_alias": False, "by_name": True} if "by_name" in _options_of(kind) else {}
    return kind.model_validate(value, **names)


def _options_of(kind: Any) -> Any:
    return inspect.signature(kind.model_validate).parameters
