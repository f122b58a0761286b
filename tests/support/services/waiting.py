"""Waiting for a server that is coming up."""

import time
from collections.abc import Callable

START_TIMEOUT_S = 150.0
_PAUSE_S = 0.05


def wait_until_it_answers(ping: Callable[[], None], check_alive: Callable[[], None]) -> None:
    """Calls `ping` until it raises nothing; `check_alive` raises when waiting on is of no use."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        check_alive()
        try:
            ping()
        except Exception as error:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer within {START_TIMEOUT_S:.0f} s") from error
            time.sleep(_PAUSE_S)
        else:
            return
