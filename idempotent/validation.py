"""Checks of options: each returns a usable value, or raises a ConfigurationError that says what to write."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from enum import Enum
from numbers import Real
from typing import Any, Final, TypeVar

from idempotent.errors import ConfigurationError

E = TypeVar("E", bound=Enum)
F = TypeVar("F", bound=Callable[..., Any])

LONGEST_S: Final = 100 * 365 * 86400.0
"""A hundred years: the stores' clocks and the timeouts of threads and drivers still hold it."""
_PLAIN: Final = {"bool": bool, "int": int, "float": float, "str": str, "None": None}
_TRUTH: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def choice(kind: type[E], value: E | str, option: str, more: str = "") -> E:
    """The member of `kind` that `value` names.

    Args:
        kind: the enum, whose members have texts as values.
        value: a member, or its text.
        option: the name of the option, for the error.
        more: other values that the option takes, for the error: `", or a callable"`.

    Raises:
        ConfigurationError: no member has that value; the error lists all values.
    """
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(repr(member.value) for member in kind)
        raise ConfigurationError(f"{option} must be one of {known}{more}, not {value!r}") from None


def seconds(
    value: object, option: str, *, zero: bool = False, most_s: float = LONGEST_S, more: str = ""
) -> float:
    """A duration: a number of seconds, above 0 unless `zero`, and at most `most_s`.

    Args:
        value: the number.
        option: the name of the option, for the error.
        zero: whether 0 is allowed.
        most_s: the longest duration, in seconds.
        more: other values that the option takes, for the error: `" or None"`.

    Raises:
        ConfigurationError: another type, not a finite number, or out of range.
    """
    if type(value) is float and (value > 0 or (zero and value == 0)) and value <= most_s:
        return value  # before the text below is made: some options come with each message
    wanted = (
        f"{option} must be {'seconds from 0' if zero else 'positive seconds'}, at most {most_s:.0f}{more}"
    )
    if isinstance(value, timedelta):
        raise ConfigurationError(f"{wanted}, not a timedelta: write {value.total_seconds()}")
    number = _real(value, wanted)
    if not (number >= 0 if zero else number > 0) or number > most_s:  # NaN fails every comparison
        raise ConfigurationError(f"{wanted}, not {value!r}")
    return number


def seconds_or_none(value: object, option: str) -> float | None:
    """A duration above 0, or None. Raises as `seconds`."""
    return None if value is None else seconds(value, option, more=" or None")


def number(value: object, option: str, *, least: float) -> float:
    """A finite number that is at least `least`.

    Raises:
        ConfigurationError: another type, not finite, or too small.
    """
    wanted = f"{option} must be a number, at least {least:g}"
    found = _real(value, wanted)
    if not least <= found < math.inf:
        raise ConfigurationError(f"{wanted}, not {value!r}")
    return found


def fraction(value: object, option: str) -> float:
    """A number from 0 to 1.

    Raises:
        ConfigurationError: another type, or out of range.
    """
    wanted = f"{option} must be a number from 0 to 1"
    found = _real(value, wanted)
    if not 0 <= found <= 1:  # NaN fails every comparison
        raise ConfigurationError(f"{wanted}, not {value!r}")
    return found


def whole(
    value: object, option: str, *, least: int | None = 1, most: int | None = None, more: str = ""
) -> int:
    """A whole number from `least` to `most`; None: without that bound.

    Args:
        value: the number.
        option: the name of the option, for the error.
        least: the least of them.
        most: the greatest of them.
        more: other values that the option takes, for the error: `" or None"`.

    Raises:
        ConfigurationError: another type, or out of range.
    """
    bounds = [
        f", at {word} {bound}" for word, bound in (("least", least), ("most", most)) if bound is not None
    ]
    wanted = f"{option} must be a whole number{''.join(bounds)}{more}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{wanted}, not {value!r}{_from_text(value, int)}")
    if (least is not None and value < least) or (most is not None and value > most):
        raise ConfigurationError(f"{wanted}, not {value}")
    return value


def flag(value: object, option: str) -> bool:
    """True or False; a text such as "false" would count as true.

    Raises:
        ConfigurationError: another type.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"{option} must be True or False, not {value!r}")
    return value


def text(value: object, option: str) -> str:
    """A text that is not empty.

    Raises:
        ConfigurationError: another type, or empty.
    """
    if not isinstance(value, str):
        raise ConfigurationError(f"{option} must be a str, not {_kind(value)}")
    if not value:
        raise ConfigurationError(f"{option} must not be empty")
    return value


def function(value: F, option: str, example: str, takes: int = 1, *, may_wait: bool = False) -> F:
    """Something to call with as many arguments as it `takes`: a plain function or, if it `may_wait`, an `async def`.

    Raises:
        ConfigurationError: it cannot be called so; the error shows the `example`.
    """
    given: object = value
    if not callable(given) or (inspect.iscoroutinefunction(given) and not may_wait):
        kind = "an `async def`" if callable(given) else repr(given)
        raise ConfigurationError(f"{option} must be a plain function, such as {example}, not {kind}")
    try:
        inspect.signature(given).bind(*[None] * takes)
    except TypeError as error:
        word = "argument" if takes == 1 else "arguments"
        raise ConfigurationError(
            f"{option} must be a function of {takes} {word}, such as {example}: {error}"
        ) from error
    except ValueError:
        pass  # some functions written in C do not say what they take
    return value


def keywords(made: type) -> dict[str, type]:
    """The keyword-only parameters of a constructor that a text can stand for, with their types."""
    kinds = {}
    for parameter, members in _hints(made):
        plain = [member for member in members if isinstance(member, type)]
        if plain and parameter.kind is parameter.KEYWORD_ONLY:
            kinds[parameter.name] = plain[0]
    return kinds


def check_types(made: type, given: Mapping[str, Any]) -> None:
    """Check the arguments of a constructor that its annotations call a plain type, or that or None.

    Args:
        made: the class whose annotations say what each argument is.
        given: the arguments by name; other names are passed over.

    Raises:
        ConfigurationError: another type, a number that is not finite, a negative duration, or an empty text.
    """
    for parameter, members in _hints(made):
        name = parameter.name
        if given[name] is None and None in members:
            continue
        match [member for member in members if member is not None]:
            case [kind] if kind is bool:
                flag(given[name], name)
            case [kind] if kind is int:
                whole(given[name], name, least=None)
            case [kind] if kind is float and name.endswith("_s"):
                seconds(given[name], name, zero=True)
            case [kind] if kind is float:
                number(given[name], name, least=0)
            case [kind] if kind is str:
                text(given[name], name)


def from_text(name: str, value: str, kinds: Mapping[str, type]) -> Any:
    """The value of an option of a URL, converted to its type.

    Raises:
        ConfigurationError: the text does not name such a value.
    """
    kind = kinds[name]
    try:
        return _TRUTH[value.lower()] if kind is bool else kind(value)
    except (KeyError, ValueError):
        raise ConfigurationError(f"option {name!r} must be of type {kind.__name__}, not {value!r}") from None


def _hints(made: type) -> Iterator[tuple[inspect.Parameter, list[object]]]:
    """The parameters of a constructor, each with the plain types in its annotation, and what is not plain."""
    for parameter in inspect.signature(made).parameters.values():
        hint = parameter.annotation
        # As written: evaluated, it might need an import for type checkers alone.
        written = hint if isinstance(hint, str) else inspect.formatannotation(hint)
        yield parameter, [_plain(member.strip()) for member in written.split("|")]


def _plain(written: str) -> object:
    """The type that an annotation, or a member of its union, names; a text if it is another than those of `_PLAIN`."""
    return str if written.startswith("Literal[") else _PLAIN.get(written, written)


def _real(value: object, wanted: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigurationError(f"{wanted}, not {value!r}{_from_text(value, float)}")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _from_text(value: object, kind: type[int | float]) -> str:
    """What to write for a text from the environment, or for a number of another type, that is such a number."""
    if not isinstance(value, (str, float)):
        return ""
    try:
        kind(value)
    except (ValueError, OverflowError):  # "ten", an infinite or no number
        return ""
    return f": write {kind.__name__}({value!r})"


def _kind(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__}"
