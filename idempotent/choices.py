"""choice: finds the enum member that an option names."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from idempotent.errors import ConfigurationError

E = TypeVar("E", bound=Enum)


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
