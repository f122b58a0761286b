"""Outage: says why a line of a relay waits, once a minute for each cause, and that it goes on."""

from __future__ import annotations

import re
from typing import Final

from idempotent.errors import described
from idempotent.logs import EventLog
from idempotent.observe.sparse import Sparse

log = EventLog(__name__)

# What differs from one error of the same cause to the next: ids, counts, ports.
_DETAILS: Final = re.compile(r"[0-9a-fA-F-]{8,}|\d+")


class Outage:
    """The time in which a line waits for the database or its broker.

    Args:
        destination: the name of the broker.
    """

    def __init__(self, destination: str) -> None:
        self._destination: Final = destination
        self._told = Sparse()
        self._cause = ""
        self._lasts = False
        self._hangs: Sparse | None = None

    def tell(self, error: Exception) -> None:
        """Say why the relay waits. Another cause is told at once."""
        self._lasts = True
        text = described(error)
        cause = _DETAILS.sub("", text)
        if cause != self._cause:
            self._told, self._cause = Sparse(), cause
        more = self._told.take()
        if more is not None:
            log.warning("relay_waits", extra={"destination": self._destination, "error": text, "more": more})

    def tell_hang(self, server: str, waited_s: float) -> None:
        """Say, from another thread, that the line waits long for one answer, unless it has said why it waits."""
        if self._lasts:
            return
        if self._hangs is None:
            self._hangs = Sparse()
        if self._hangs.take() is not None:
            about = {"destination": self._destination, "server": server, "waited_s": round(waited_s)}
            log.warning("relay_hangs", extra=about)

    def end(self) -> None:
        """Say that the line goes on, if it waited."""
        if self._lasts or self._hangs is not None:
            self._told, self._lasts, self._hangs = Sparse(), False, None
            log.warning("relay_goes_on", extra={"destination": self._destination})
