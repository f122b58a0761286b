"""Values of which there are several for every message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def hot_value(*, eq: bool = True) -> Callable[[type[T]], type[T]]:
    """A slotted dataclass that type checkers take for a frozen one. Nobody changes a field of it.

    Nothing enforces that when the program runs, because to make a frozen one takes five times as long.

    Args:
        eq: compare and hash by the fields; if not, by identity.
    """
    return dataclass(slots=True, eq=eq, unsafe_hash=eq)
