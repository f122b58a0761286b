"""Fork detection: a child must not use the threads, connections and random prefixes of its parent."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar
from weakref import WeakSet

from idempotent.logs import EventLog

log = EventLog(__name__)

L = TypeVar("L")


def in_child(function: Callable[[], object]) -> None:
    """Call `function` in every child after a fork, before any other code runs in the child."""
    # Platforms without fork do not have this function.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


class _Generation:
    """The number of forks between this process and the first process that imported this module.

    `os.getpid()` would detect a child too, at the price of a system call for each message.
    """

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0

    def count(self) -> None:
        self.number += 1


generation: Final = _Generation()
in_child(generation.count)


def end_child(consumer: str) -> NoReturn:
    """End a child process that a handler forked and that has left the handler, with the exit code that it asked for.

    Its parent has the same claim, the same connections and the same message in hand: what the child would do with them
    now, the parent does as well.
    """
    error = sys.exc_info()[1]
    code = 1 if error else 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    else:
        log.warning("child_left_handler", extra={"consumer": consumer}, exc_info=error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # missing, closed
            stream.flush()
    os._exit(code & 0xFF)


_locks: Final[WeakSet[Any]] = WeakSet()


def free_in_child(lock: L) -> L:
    """Let a Lock, RLock, Condition or Event be free in every child: a fork does not copy the thread that holds it."""
    _locks.add(lock)
    return lock


def _free_locks() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # noqa: SLF001 - as the standard library does


in_child(_free_locks)
