"""Inbox: what stomp.py's reader thread leaves for the thread that owns the connection."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from idempotent.adapters.activemq.frames import Frame


class Inbox:
    """A stomp.py listener that only takes notes: one that takes its time, or raises, costs the connection.

    The reader thread writes; the owner reads. Its own operations are atomic, so there is no lock to wait for.

    Args:
        arrived: set with every frame.
    """

    def __init__(self, arrived: threading.Event) -> None:
        """Empty."""
        self._arrived = arrived
        self.messages: deque[Frame] = deque()
        """MESSAGE frames in the order of their arrival. No more than the prefetch: the broker counts."""
        self.answers: dict[str, Frame] = {}
        """RECEIPT and ERROR frames by the receipt they answer."""
        self.errors: deque[Frame] = deque()
        """ERROR frames that answer nothing in particular."""
        self.connected: Frame | None = None
        """The CONNECTED frame."""
        self.is_closed = False
        """The connection is over."""

    def on_connected(self, frame: Any) -> None:
        """The broker greets."""
        self.connected = _copied(frame)
        self._arrived.set()

    def on_message(self, frame: Any) -> None:
        """A message."""
        self.messages.append(_copied(frame))
        self._arrived.set()

    def on_receipt(self, frame: Any) -> None:
        """The broker has done what was asked."""
        self._answered(frame)

    def on_error(self, frame: Any) -> None:
        """The broker has not."""
        self._answered(frame)

    def on_disconnected(self) -> None:
        """The end."""
        self.is_closed = True
        self._arrived.set()

    def _answered(self, frame: Any) -> None:
        copied = _copied(frame)
        receipt = copied.headers.get("receipt-id")
        if receipt is None:
            self.errors.append(copied)
        else:
            self.answers[receipt] = copied
        self._arrived.set()


def _copied(frame: Any) -> Frame:
    return Frame(frame.cmd, dict(frame.headers), frame.body or b"")
