"""Pauses: which consumers of a store are paused. A pause is a dead key of `PAUSES`, which says by whom and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar
from urllib.parse import unquote

from idempotent.admin import PAUSES, KeyFilter, KeyRecord, Pause
from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.claims import UNBOUNDED, ClaimRequest, Failure, KeyStatus, Remembers, Verdict
from idempotent.errors import ConfigurationError, StoreBusyError
from idempotent.keys import id_in

T = TypeVar("T")

_DEAD: Final = frozenset({KeyStatus.DEAD})
_SEPARATOR: Final = ": "
# Another command makes or removes the same key at this moment: a round trip or two.
_PATIENCE_S: Final = 5.0
_AGAIN_S: Final = 0.05


def can_pause(checker: type[AbstractIdempotentChecker]) -> bool:
    """Whether the store of such a checker has keys that can be looked up, as those of pauses."""
    return (
        checker.admin is not AbstractIdempotentChecker.admin and checker.remembers is not Remembers.POSITIONS
    )


def demand_pausable(checker: type[AbstractIdempotentChecker]) -> None:
    """Raise ConfigurationError if the consumers of such a checker cannot be paused."""
    if not can_pause(checker):
        raise ConfigurationError(
            f"the consumers of {checker.__name__} cannot be paused: it keeps no keys that can be looked up. "
            "Stop their workers, or let these serve the others: idempotent run --consumers"
        )


class Pauses:
    """The pauses in the store of one checker. Each key is claimed and released as that of a message is.

    Args:
        checker: of the consumers; or another one with the same keys.

    Raises:
        ConfigurationError: the checker has no keys that can be looked up, such as an OffsetChecker.
    """

    def __init__(self, checker: AbstractIdempotentChecker) -> None:
        """Ask nothing yet."""
        demand_pausable(type(checker))
        if checker.dead_retention_s is not None:
            raise ConfigurationError(
                f"a pause would end by itself with dead_retention_s={checker.dead_retention_s:g}: "
                "pause with a checker, or a URL, that does not have it"
            )
        self._checker = checker
        self._admin = checker.admin()

    def pause(self, consumer: str, *, by: str, note: str = "") -> tuple[Pause, bool]:
        """Pause a consumer. Returns the pause, and whether it is new: an older one stays as it is.

        Args:
            consumer: its name, `KeySpace.name`.
            by: who pauses it.
            note: why.

        Raises:
            StoreBusyError: another command has begun to pause it, and has not ended.
            StoreError: the store did not answer.
        """
        request = ClaimRequest(PAUSES.key(consumer))
        by = " ".join(by.replace(":", " ").split())
        failure = Failure(f"{by}{_SEPARATOR}{note.strip()}", UNBOUNDED, fatal=True)
        protocol = self._checker.protocol

        def step() -> tuple[Pause, bool] | None:
            decision = protocol.claim(request)
            if decision.claim is not None:
                protocol.release(decision.claim, failure)
            elif decision.verdict is not Verdict.DEAD:
                return None
            found = pause_of(self._checker, consumer)
            return None if found is None else (found, decision.claim is not None)

        return self._done(step, consumer)

    def resume(self, consumer: str) -> Pause | None:
        """End the pause of a consumer. Returns it; None: the consumer was not paused.

        Raises:
            StoreBusyError: another command pauses it at this moment.
            StoreError: the store did not answer.
        """
        key = PAUSES.key(consumer)

        def step() -> tuple[Pause | None] | None:
            record = self._admin.get(key)
            if record is None:
                return (None,)
            return (_pause(record, consumer),) if self._admin.reopen(record) else None

        return self._done(step, consumer)[0]

    def _done(self, step: Callable[[], T | None], consumer: str) -> T:
        until = time.monotonic() + _PATIENCE_S
        while (done := step()) is None:
            if time.monotonic() > until:
                raise StoreBusyError(
                    f"another command pauses {consumer} at this moment, or died when it did. Try again in "
                    f"{self._checker.lease_s or 0:.0f} seconds"
                )
            time.sleep(_AGAIN_S)
        return done


def pause_of(checker: AbstractIdempotentChecker, consumer: str) -> Pause | None:
    """The pause of a consumer in the store of this checker; None: it is not paused.

    Raises:
        StoreError: the store did not answer.
    """
    return pauses_of(checker, [consumer]).get(consumer)


def pauses_of(checker: AbstractIdempotentChecker, consumers: Iterable[str]) -> dict[str, Pause]:
    """The pauses of these consumers, those that are paused, after one look at the store.

    Raises:
        StoreError: the store did not answer.
    """
    keys = {consumer: PAUSES.key(consumer) for consumer in consumers}
    found = checker.admin().get_many([*keys.values()])
    records = {consumer: found.get(key.hash) for consumer, key in keys.items()}
    return {
        consumer: _pause(record, consumer)
        for consumer, record in records.items()
        if record is not None and record.status is KeyStatus.DEAD
    }


def pauses_in(checker: AbstractIdempotentChecker) -> Iterator[Pause]:
    """All pauses in the store of a checker, in no order. It reads every key of the store.

    Raises:
        StoreError: the store did not answer.
    """
    for record in checker.admin().list(KeyFilter(PAUSES.name, _DEAD)):
        yield _pause(record, unquote(id_in(record.text)))


def _pause(record: KeyRecord, consumer: str) -> Pause:
    by, _, note = (record.last_error or "").partition(_SEPARATOR)
    return Pause(consumer, record.update_at_us, record.now_us, by, note.strip())
