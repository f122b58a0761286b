"""Inbox: frames from stomp.py's reader thread for the thread that owns the connection."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from idempotent.adapters.activemq.frames import Frame


class Inbox:
    """A stomp.py listener that only stores frames: a slow or raising listener costs the connection.

    The reader thread writes and the owner reads. Each operation is atomic, so no lock is needed.

    Args:
        arrived: set with every frame.
    """

    def __init__(self, arrived: threading.Event) -> None:
        self._arrived = arrived
        self.messages: deque[Frame] = deque()
        """MESSAGE frames in the order of their arrival. The broker limits their number to the prefetch."""
        self.answers: dict[str, Frame] = {}
        """RECEIPT and ERROR frames by the receipt they answer."""
        self.errors: deque[Frame] = deque()
        """ERROR frames without a receipt."""
        self.connected: Frame | None = None
        """The CONNECTED frame."""
        self.is_closed = False
        """Whether the connection is lost."""

    def on_connected(self, frame: Any) -> None:
        """Store the CONNECTED frame."""
        self.connected = _copied(frame)
        self._arrived.set()

    def on_message(self, frame: Any) -> None:
        """Store a MESSAGE frame."""
        self.messages.append(_copied(frame))
        self._arrived.set()

    def on_receipt(self, frame: Any) -> None:
        """Store a RECEIPT frame."""
        self._answered(frame)

    def on_error(self, frame: Any) -> None:
        """Store an ERROR frame."""
        self._answered(frame)

    def on_disconnected(self) -> None:
        """Note the end of the connection."""
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
