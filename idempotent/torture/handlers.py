"""The consumer of a run: it does what its message says, and writes each effect to the ledger."""

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

# Kills and failures alone never use up the attempts: only poison becomes a dead letter.
_ATTEMPTS: Final = 100_000
_BACKOFF: Final = Backoff(initial_s=0.1, maximum_s=1.0)
_FAILS: Final = 0.6
_LONGEST_MOMENT_S: Final = 0.004
SLOW: Final = 1.3
"""How many leases a slow handler takes: without renewal the first one would end."""


class FlakyError(Exception):
    """A temporary failure."""


class PoisonError(Exception):
    """A permanent failure."""


def consumer_of(
    registry: Registry, job: Job, store: Store, checker: AbstractIdempotentChecker, journal: Journal
) -> Consumer:
    """Register the consumer.

    With a leased checker, effects go to the journal, outside of its store; with a transactional one into its database,
    in the transaction of the key.
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
    """Take some time, so that faults of the process hit its handler."""
    time.sleep(lease_s * SLOW if behaviour is Behaviour.SLOW else random.random() * _LONGEST_MOMENT_S)
