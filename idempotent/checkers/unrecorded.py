"""Unrecorded: completions that the store did not record. Their effects happened, so they are retried."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from idempotent.claims import ClaimRequest, Completion, Decision, Verdict
from idempotent.errors import StoreError
from idempotent.keys import Key
from idempotent.observe.counting import counters
from idempotent.observe.events import Event

log = logging.getLogger(__name__)

_RETRY_S: Final = 1.0


class Unrecorded:
    """Completions to retry, before this process's next claim of the key and with every round of renewals.

    Their leases are renewed meanwhile, so that no other process repeats the effect.

    Args:
        complete: records one completion in the store; False: another owner has the key.
    """

    def __init__(self, complete: Callable[[Completion], bool]) -> None:
        self._complete = complete
        self._completions: dict[bytes, Completion] = {}

    def __bool__(self) -> bool:
        return bool(self._completions)

    def remember(self, completions: Sequence[Completion]) -> None:
        """Keep completions that the store did not record."""
        for completion in completions:
            if completion.claim.key:
                self._completions[completion.claim.key.hash] = completion
        log.warning("completion_not_recorded", extra={"keys": len(completions)})

    def settle(self, request: ClaimRequest) -> bool:
        """Retry the completion of this key, if one is kept. False: the store still did not record it."""
        completion = self._completions.get(request.key.hash)
        return completion is None or self._offer(completion)

    def offer_all(self) -> None:
        """Retry every completion. A failure is logged."""
        for completion in list(self._completions.values()):
            self._offer(completion)

    def _offer(self, completion: Completion) -> bool:
        """Retry a completion. Returns whether the store answered."""
        key = completion.claim.key
        assert key is not None
        try:
            owned = self._complete(completion)
        except StoreError as error:
            log.warning("completion_not_recorded", extra={"key": str(key), "error": str(error)})
            return False
        if self._completions.get(key.hash) is completion:
            del self._completions[key.hash]
        if not owned:
            _count_lost(key, completion)
        return True


def _count_lost(key: Key, completion: Completion) -> None:
    counters.add(key.consumer, Event.COMPLETION_LOST)
    log.error("completion_lost", extra={"key": str(key), "fence": completion.claim.fence})


def effect_not_recorded() -> Decision:
    """The answer to a claim of a key whose effect happened but is not recorded yet: the handler must not run again."""
    return Decision(Verdict.IN_PROGRESS, retry_after_s=_RETRY_S)
