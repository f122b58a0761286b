"""limit_silence: lets the operating system end a connection whose server no longer answers at all."""

from __future__ import annotations

import contextlib
import math
import os
import socket
from typing import Any, Final

from idempotent.stores.sql.inherited import socket_of

LONGEST_S: Final = 10.0
_DEAD_AFTER_PROBES: Final = 2


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
