"""What the views of this process answer, and what they have done."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass
class Orders:
    """Set by a test."""

    alias: str = "default"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    error: Exception | None = None
    parts: list[bytes] | None = None
    rolls_back: bool = False
    is_exception: bool = False
    reopens: bool = False
    waits: threading.Event | None = None
    charged: list[bytes] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    began: threading.Event = field(default_factory=threading.Event)

    def reset(self, alias: str) -> None:
        self.__init__(alias)  # type: ignore[misc] # all of it


orders = Orders()
