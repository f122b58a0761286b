"""Call: one call of the client library that may never return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Call:
    """A call in a thread of its own. A caller that times out abandons it; the thread ends with the process.

    Args:
        function: is called at once.
        arguments: of the call.

    Attributes:
        error: what the function raised.
    """

    def __init__(self, function: Callable[..., object], *arguments: Any) -> None:
        self._ended = threading.Event()
        self.error: Exception | None = None
        thread = threading.Thread(target=self._run, args=(function, arguments), daemon=True)
        thread.name = "idempotent-kafka-call"
        thread.start()

    def wait(self, wait_s: float) -> bool:
        """Wait at most `wait_s` seconds. Whether the call has returned."""
        return self._ended.wait(wait_s)

    def _run(self, function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        try:
            function(*arguments)
        except Exception as error:
            self.error = error
        finally:
            self._ended.set()
