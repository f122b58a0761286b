"""The consumer of a run: it writes each effect to the ledger, after what its message makes it do."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection, insert
from sqlalchemy.exc import SQLAlchemyError

from idempotent.checkers.base import AbstractIdempotentChecker
from idempotent.consumer import Consumer, current_claim
from idempotent.message import Message, Position
from idempotent.policy import Backoff
from idempotent.registry import Registry
from idempotent.testing.crashpoints import around
from idempotent.torture.examination.effects import effects_table
from idempotent.torture.job import GROUP, Job
from idempotent.torture.journal import Journal, What
from idempotent.torture.messages import Behaviour
from idempotent.torture.stores import Store

# No message dies of kills and failures alone: what is dead at the end is what was meant to be.
_ATTEMPTS: Final = 100_000
_BACKOFF: Final = Backoff(initial_s=0.1, maximum_s=1.0)
_FAILS: Final = 0.6
_LONGEST_MOMENT_S: Final = 0.004
SLOW: Final = 1.3
"""How many leases a slow handler takes: without renewal the first would end."""


class FlakyError(Exception):
    """Comes and goes."""


class PoisonError(Exception):
    """Never goes away."""


def consumer_of(
    registry: Registry, job: Job, store: Store, checker: AbstractIdempotentChecker, journal: Journal
) -> Consumer:
    """Register it.

    A leased checker's effects go to the journal, outside of its store; a transactional one's into its database, in
    the transaction of the key.
    """
    begun: Counter[str] = Counter()
    is_transactional = store.is_transactional
    register = registry.consumer(
        job.subject,
        group=GROUP,
        checker=checker,
        retry_for=(FlakyError, SQLAlchemyError),
        max_attempts=_ATTEMPTS,
        backoff=_BACKOFF,
    )

    def run(message: Message, write: Callable[[dict[str, Any]], object]) -> None:
        known_as = str(message.id)
        begun[known_as] += 1
        behaviour = Behaviour(message.json()["behaviour"])
        place = str(message.position) if isinstance(message.position, Position) else ""
        fails = _fails(behaviour)
        _dawdle(behaviour, job.lease_s)
        if fails:
            journal.write(What.RAISED, id=known_as, position=place)
        if fails and not (is_transactional and behaviour is Behaviour.UNDONE):
            raise PoisonError("always") if behaviour is Behaviour.POISON else FlakyError("before the effect")
        around(write, "effect")(
            {
                "id": known_as,
                "position": place,
                "process": job.process,
                "attempt": begun[known_as],
                "fence": current_claim().fence,
            }
        )
        if fails:
            raise FlakyError("after the effect")

    if not is_transactional:
        return register(lambda message: run(message, lambda effect: journal.write(What.EFFECT, **effect)))

    table = effects_table(job.name)

    def handle(message: Message, connection: Connection) -> None:
        def write(effect: dict[str, Any]) -> None:
            times = {"at": time.monotonic(), "wall": time.time()}
            connection.execute(insert(table), effect | times)

        run(message, write)

    return register(handle)


def _fails(behaviour: Behaviour) -> bool:
    if behaviour in (Behaviour.FLAKY, Behaviour.UNDONE):
        return random.random() < _FAILS
    return behaviour is Behaviour.POISON


def _dawdle(behaviour: Behaviour, lease_s: float) -> None:
    """So that what is done to the process meets its handler."""
    time.sleep(lease_s * SLOW if behaviour is Behaviour.SLOW else random.random() * _LONGEST_MOMENT_S)
