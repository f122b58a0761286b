"""What a fork changes: threads, connections and random prefixes are the parent's."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final


def in_child(function: Callable[[], object]) -> None:
    """Call it in every child after a fork, before anything else runs there."""
    # Where there is no fork there is no such function.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


class _Generation:
    """How many forks lie between this process and the first one that had this module.

    `os.getpid()` tells a child from its parent too, at the price of a system call a message.
    """

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def count(self) -> None:
        self.number += 1


generation: Final = _Generation()
in_child(generation.count)
