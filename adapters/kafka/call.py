"""Call: one call of the client library that may never come back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Call:
    """Runs in a thread of its own; whoever loses patience forgets it, and its thread ends with the process.

    Args:
        function: called at once.
        arguments: for it.

    Attributes:
        error: what it raised, once it is over.
    """

    def __init__(self, function: Callable[..., object], *arguments: Any) -> None:
        """Begin."""
        self._is_over = threading.Event()
        self.error: Exception | None = None
        thread = threading.Thread(target=self._run, args=(function, arguments), daemon=True)
        thread.name = "idempotent-kafka-call"
        thread.start()

    def is_over(self, wait_s: float) -> bool:
        """Whether it has come back, waiting so long for it."""
        return self._is_over.wait(wait_s)

    def _run(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        try:
            function(*arguments)
        except Exception as error:
            self.error = error
        finally:
            self._is_over.set()
