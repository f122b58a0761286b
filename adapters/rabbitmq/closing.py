"""Bounds what pika waits for without a limit."""

from __future__ import annotations

import threading
from collections.abc import Callable


def within(close: Callable[[], None], seconds: float) -> None:
    """Call a function that closes, in a thread that is abandoned after these seconds: a frozen broker never answers.

    Raises:
        TimeoutError: it has not returned.
        Exception: what it raised.
    """
    errors: list[Exception] = []

    def run() -> None:
        try:
            close()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="idempotent-rabbitmq-close", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"the broker did not answer within {seconds:g} seconds")
    if errors:
        raise errors[0]
