"""Sockets of connections: when a silent server ends one, and what a forked child finds in its place."""

from __future__ import annotations

import contextlib
import math
import os
import socket
from typing import Any, Final
from weakref import WeakSet

from idempotent.forks import in_child

LONGEST_S: Final = 10.0
_DEAD_AFTER_PROBES: Final = 2


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


def limit_silence(raw: Any, seconds: float) -> None:
    """End a TCP connection after about this many seconds without an acknowledgement of the server's machine.

    Without it, a machine or network that disappears blocks a statement for two hours. A statement that takes long is
    not affected, because the machine acknowledges the probes meanwhile. Does nothing on a system without these options.

    Args:
        raw: the driver's connection.
        seconds: rounded up to whole seconds, as the options are.
    """
    end = socket_of(raw)
    if not hasattr(end, "fileno"):
        return  # SQLite's
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(end.fileno())) as twin:
        if twin.family not in (socket.AF_INET, socket.AF_INET6):
            return
        between_s = math.ceil(seconds / (_DEAD_AFTER_PROBES + 1))
        twin.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (
            ("TCP_KEEPIDLE", between_s),
            ("TCP_KEEPINTVL", between_s),
            ("TCP_KEEPCNT", _DEAD_AFTER_PROBES),
            ("TCP_USER_TIMEOUT", math.ceil(seconds) * 1000),
        ):
            if hasattr(socket, name):
                twin.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
