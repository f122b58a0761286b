"""Gives a handler the body of its message as the class that annotates its first parameter."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from typing import Any, Final

from idempotent.codecs import json_reader
from idempotent.errors import ConfigurationError, MissingExtraError, UnfitBodyError
from idempotent.message import Message

_MOST_FIELDS: Final = 5


def is_body(annotation: Any) -> bool:
    """Whether an annotation is a class that a body is read as: a dataclass, a pydantic model or a Struct."""
    kind = _class_of(annotation)
    return (
        isinstance(kind, type)
        and not issubclass(kind, Message)
        and (
            dataclasses.is_dataclass(kind)
            or hasattr(kind, "__struct_fields__")
            or hasattr(kind, "__pydantic_validator__")
        )
    )


def has_body(annotation: Any) -> bool:
    """Whether such a class is in an annotation, as in a union or a list."""
    return is_body(annotation) or any(map(has_body, typing.get_args(annotation)))


def taking_body(
    function: Callable[..., Any], annotation: Any, name: str, *, with_message: bool
) -> Callable[..., Any]:
    """A function that takes a message, and calls a handler with its body, read anew for each call.

    It raises UnfitBodyError for a body that does not fit, whose text has the field and the reason, but no value.

    Args:
        function: the handler.
        annotation: that of its first parameter: a dataclass, a pydantic model or a msgspec Struct, perhaps `Annotated`.
        name: its name, for errors.
        with_message: it takes the message too, as its second parameter.

    Raises:
        ConfigurationError: msgspec does not know the class, or that of a field.
        MissingExtraError: msgspec is not installed.
    """
    read, kind = _reader(annotation, name), _class_of(annotation).__name__

    def handle(message: Message, *session: Any) -> Any:
        data = message.body
        if data is None:
            raise UnfitBodyError("a tombstone has no body")
        try:
            body = read(data)
        except Exception as error:  # a class checks its fields in code of its own, which may raise anything
            why = _reason(error)
        else:
            return function(body, message, *session) if with_message else function(body, *session)
        # Not in the `except`: a traceback of this error would show the other one, which quotes the body.
        raise UnfitBodyError(f"the body of {len(data)} bytes does not fit {kind}: {why}")

    return handle


def _reader(annotation: Any, name: str) -> Callable[[bytes], Any]:
    # By pydantic itself: its aliases, and its strict types, mean what others send.
    if hasattr(_class_of(annotation), "__pydantic_validator__"):
        import pydantic

        return pydantic.TypeAdapter(annotation).validate_json
    try:
        return json_reader(annotation, lambda kind, value: kind.model_validate(value))
    except MissingExtraError:
        raise
    except ConfigurationError as error:
        raise ConfigurationError(
            f"the body of a message cannot be read for the first parameter of {name} ({error}): annotate it with "
            "Message, and decode message.body in the handler"
        ) from error


def _class_of(annotation: Any) -> Any:
    """The class in `Annotated`, and of one with parameters such as `Page[Order]`."""
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    return typing.get_origin(annotation) or annotation


def _reason(error: Exception) -> str:
    """The field and what is wrong with it, without values.

    Of pydantic's error its code, such as `int_parsing`: its text quotes the value. msgspec's own texts quote names of
    tags and enums alone, which are cut off; the text of an error that the class itself raises may say anything.
    """
    text, mark, path = str(error).rpartition(" - at `")
    where = path.removesuffix("`").removeprefix("$").removeprefix(".") if mark else ""
    raised: Any = error if hasattr(error, "errors") else error.__cause__
    if hasattr(raised, "errors"):
        found = raised.errors(include_url=False, include_context=False, include_input=False)
        return "; ".join(
            f"{each['type']} at {'.'.join(filter(None, [where, *map(str, each['loc'])])) or 'the top'}"
            for each in found[:_MOST_FIELDS]
        )
    if raised is None and type(error).__module__ == "msgspec":
        what = text if mark else str(error)
        for quote in "'\"":  # Python quotes a text with an apostrophe otherwise
            head, quoted, _ = what.partition(quote)
            what = f"{head}..." if quoted else head
    else:
        what = type(raised or error).__name__
    return f"{what} at {where or 'the top'}"
