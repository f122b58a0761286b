"""Gives a handler the body of its message as the class that annotates its first parameter."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from typing import Any, Final

from idempotent.codecs import json_reader, types_in
from idempotent.errors import ConfigurationError, MissingExtraError, UnfitBodyError
from idempotent.message import Message

_MOST_FIELDS: Final = 5
# What pydantic and msgspec take for a value that does not fit, and what a body that is nested deeply raises.
_UNFIT: Final = (ValueError, TypeError, AssertionError, RecursionError)


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

    It raises UnfitBodyError for a body that does not fit, whose text has the field and the reason, but no value. The
    class refuses one by a ValueError, TypeError or AssertionError; what else it raises is an error of the handler.

    Args:
        function: the handler.
        annotation: that of its first parameter: a dataclass, a pydantic model or a msgspec Struct, perhaps `Annotated`.
        name: its name, for errors.
        with_message: it takes the message too, as its second parameter.

    Raises:
        ConfigurationError: msgspec does not know the class, or that of a field, or would pass over its `__init__`.
        MissingExtraError: msgspec is not installed.
    """
    read, unfit = _reader(annotation, name)
    kind = _class_of(annotation).__name__

    def handle(message: Message, *session: Any) -> Any:
        data = message.body
        if data is None:
            raise UnfitBodyError("a tombstone has no body")
        try:
            body = read(data)
        except unfit as error:
            why = _reason(error)
        else:
            return function(body, message, *session) if with_message else function(body, *session)
        # Not in the `except`: a traceback of this error would show the other one, which quotes the body.
        raise UnfitBodyError(f"the body of {len(data)} bytes does not fit {kind}: {why}")

    return handle


def _reader(annotation: Any, name: str) -> tuple[Callable[[bytes], Any], tuple[type[Exception], ...]]:
    """What reads a body, and what that raises for one that does not fit."""
    # By pydantic itself: its aliases, and its strict types, mean what others send.
    if hasattr(_class_of(annotation), "__pydantic_validator__"):
        import pydantic

        return pydantic.TypeAdapter(annotation).validate_json, _UNFIT
    try:
        read = json_reader(annotation, lambda kind, value: kind.model_validate(value))
        import msgspec

        for each in types_in(msgspec.inspect.type_info(annotation)):
            if isinstance(each, msgspec.inspect.DataclassType):
                _demand_its_init(_class_of(each.cls))
    except MissingExtraError:
        raise
    except ConfigurationError as error:
        raise ConfigurationError(
            f"the body of a message cannot be read for the first parameter of {name} ({error}): annotate it with "
            "Message, and decode message.body in the handler"
        ) from error
    return read, (*_UNFIT, msgspec.MsgspecError)


def _demand_its_init(kind: Any) -> None:
    """Refuse a dataclass of which msgspec, which sets the fields itself, would make another object than its `__init__`.

    Raises:
        ConfigurationError: it has one of its own, or a field that no body has.
    """
    code = getattr(kind.__init__, "__code__", None)
    if code is not None and not code.co_filename.startswith("<"):  # <string>: made by dataclass
        raise ConfigurationError(
            f"{kind.__name__} has an __init__ of its own, which would not be called: check the fields in __post_init__"
        )
    for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
        if not field.init and field.default is field.default_factory is dataclasses.MISSING:
            raise ConfigurationError(
                f"the field {field.name} of {kind.__name__} has init=False: give it a default, or each body would "
                "have to have it"
            )


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
