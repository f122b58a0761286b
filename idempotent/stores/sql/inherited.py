"""keep_from_children: a forked child neither holds nor uses the connections of its parent."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Final
from weakref import WeakSet

from idempotent.forks import in_child

_kept: Final[WeakSet[Any]] = WeakSet()


def keep_from_children(raw: Any) -> None:
    """Let the copy of a connection in each forked child lead nowhere.

    Otherwise a child that outlives its parent keeps the parent's transaction open, with its locks: the server sees the
    end of a connection when the last process closes it. And what the child sent would disturb the parent.

    Args:
        raw: the driver's connection. SQLite's is a file, whose locks a child's `close` would release: it is left alone.
    """
    if hasattr(socket_of(raw), "fileno"):
        _kept.add(raw)


def socket_of(raw: Any) -> Any:
    """The object with the `fileno()` of a driver's connection: PyMySQL shows its socket nowhere else."""
    return getattr(raw, "_sock", raw)


def _lead_nowhere() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for raw in list(_kept):
        # Closed meanwhile: then it has no number. A number is never freed here, so nothing else can get it.
        with contextlib.suppress(Exception):
            os.dup2(nowhere, socket_of(raw).fileno(), inheritable=False)
    os.close(nowhere)


in_child(_lead_nowhere)
