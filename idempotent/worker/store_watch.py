"""StoreWatch: asks whether the stores of a worker's consumers can take keys."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from typing import Final, Self

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.errors import StoreUnavailableError

log = logging.getLogger(__name__)

_EVERY_S: Final = 5.0
_EVERY_WHILE_DOWN_S: Final = 1.0
# An answer that takes longer counts as no answer, until it comes.
_ANSWER_S: Final = 10.0
_LAST_WAIT_S: Final = 1.0


class StoreWatch:
    """A context manager: inside, a thread asks every checker's store every few seconds.

    Entering waits for the first answers, at most ten seconds. What a store answers is logged when it changes.

    Args:
        checkers: the checkers whose stores are asked.
        fail_fast: raise on entering when a store cannot be used.
    """

    def __init__(self, checkers: Collection[AbstractIdempotentChecker], *, fail_fast: bool = False) -> None:
        """Ask nothing yet."""
        self._checkers = tuple(checkers)
        self._fail_fast = fail_fast
        self._errors: dict[AbstractIdempotentChecker, Exception] = {}
        self._asked_at: float | None = None
        self._has_asked = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="idempotent-stores", daemon=True)

    @property
    def ready(self) -> bool:
        """Whether every store gave its last answer in time, and can be used."""
        asked_at = self._asked_at
        is_late = asked_at is not None and time.monotonic() - asked_at > _ANSWER_S
        return self._has_asked.is_set() and not self._errors and not is_late

    def __enter__(self) -> Self:
        """Wait for the first answers.

        Raises:
            StoreError: with `fail_fast`: a store cannot be used, or did not answer.
        """
        self._thread.start()
        answered = self._has_asked.wait(_ANSWER_S)
        if self._fail_fast and not self.ready:
            self._stopped.set()
            if answered:
                raise next(iter(self._errors.values()))
            raise StoreUnavailableError(f"the store did not answer within {_ANSWER_S:.0f} seconds")
        return self

    def __exit__(self, *_error: object) -> None:
        self._stopped.set()
        self._thread.join(_LAST_WAIT_S)

    def _run(self) -> None:
        while True:
            for checker in self._checkers:
                self._asked_at = time.monotonic()
                self._ask(checker)
                self._asked_at = None
            self._has_asked.set()
            if self._stopped.wait(_EVERY_WHILE_DOWN_S if self._errors else _EVERY_S):
                return

    def _ask(self, checker: AbstractIdempotentChecker) -> None:
        kind = type(checker).__name__
        try:
            checker.ping()
        except Exception as error:  # also that of a checker of the application
            before = self._errors.get(checker)
            self._errors[checker] = error
            if str(before) != str(error):
                log.error("store_unusable", extra={"checker": kind, "error": str(error)})  # noqa: TRY400 - the reason is in the message
        else:
            if self._errors.pop(checker, None) is not None:
                # As loud as the outage, or a log of warnings never shows its end.
                log.warning("store_usable_again", extra={"checker": kind})
