"""PauseWatch: which consumers of a worker are paused, as their stores said last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from idempotent.admin import Pause
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.checkers.pauses import can_pause, pauses_of
from idempotent.consumer import AnyConsumer
from idempotent.errors import ConfigurationError, StoreUnavailableError
from idempotent.logs import EventLog
from idempotent.policy import OnStoreError

log = EventLog(__name__)


class PauseWatch:
    """Asks the stores for the pauses of a worker's consumers. One that does not answer changes nothing.

    Args:
        consumers: those of the worker.

    Attributes:
        paused: the names of those that are paused. Replaced as a whole, so any thread may read it.
    """

    def __init__(self, consumers: Iterable[AnyConsumer]) -> None:
        """Ask nothing yet."""
        self._of: Final[dict[AbstractIdempotentChecker, list[AnyConsumer]]] = {}
        for consumer in consumers:
            if can_pause(type(consumer.checker)):
                self._of.setdefault(consumer.checker, []).append(consumer)
        self._pauses: dict[AnyConsumer, Pause] = {}
        self._paused: frozenset[AnyConsumer] = frozenset()
        self.paused: frozenset[str] = frozenset()
        # Of these the store has not said yet whether they are paused. While it is away their messages wait.
        self._unknown = frozenset(
            consumer for several in self._of.values() for consumer in several if _needs_store(consumer)
        )

    @property
    def closed(self) -> frozenset[AnyConsumer]:
        """The consumers of which nothing may be received now: they are paused, or may be."""
        return self._paused | self._unknown if self._unknown else self._paused

    def ask(self, checker: AbstractIdempotentChecker) -> None:
        """Ask the store of a checker, in one thread at a time. What changed is logged.

        Raises:
            StoreUnavailableError: the store did not answer.
            StoreError: the store refuses to say, for want of a table or of a right. Its consumers go on.
        """
        consumers = self._of.get(checker, ())
        if not consumers:
            return
        try:
            found = pauses_of(checker, [consumer.name for consumer in consumers])
        except StoreUnavailableError:
            raise
        except ConfigurationError:  # a checker of the application's, which cannot look keys up
            self._open(checker)
            del self._of[checker]
            return
        except Exception:
            self._open(checker)
            raise
        for consumer in consumers:
            self._note(consumer, found.get(consumer.name))

    def _open(self, checker: AbstractIdempotentChecker) -> None:
        """Let the consumers of a store that does not say go on as if it had no pauses, until it says otherwise."""
        self._unknown -= frozenset(self._of.get(checker, ()))

    def _note(self, consumer: AnyConsumer, pause: Pause | None) -> None:
        before = self._pauses.get(consumer)
        if pause is None:
            self._pauses.pop(consumer, None)
        else:
            self._pauses[consumer] = pause
        self._paused = frozenset(self._pauses)
        self.paused = frozenset(each.name for each in self._pauses)
        self._unknown -= {consumer}
        if pause is not None and before is None:
            about = {"by": pause.by, "note": pause.note, "paused_s": _seconds(pause)}
            log.warning("consumer_paused", extra={"consumer": consumer.name, **about})
        elif pause is None and before is not None:
            # As loud as the pause, or a log of warnings never shows its end. The key has gone, with whoever removed it.
            ended = {"paused_by": before.by, "note": before.note, "paused_s": _seconds(before)}
            log.warning("consumer_resumed", extra={"consumer": consumer.name, **ended})


def _seconds(pause: Pause) -> int:
    return max(round((pause.now_us - pause.since_us) / 1_000_000), 0)


def _needs_store(consumer: AnyConsumer) -> bool:
    """Whether its handler waits for the store to answer."""
    runs_without = consumer.options.on_store_error is OnStoreError.PROCESS or consumer.binding.disabled
    return not runs_without
