"""Redrive: return dead letters to their subject and reopen their keys, so that they run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from idempotent.admin import KeyAdmin
from idempotent.claims import KeyStatus
from idempotent.consumer import Consumer
from idempotent.errors import ConfigurationError, MessageError
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result
from idempotent.registry import Registry

if TYPE_CHECKING:
    from idempotent.adapters.base import Adapter, Delivery

_ACK: Final = Result(Outcome.PROCESSED)
_MAX_RECEIVED: Final = 100
_WAIT_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Redriven:
    """What a redrive did.

    Attributes:
        returned: letters published to their subject again.
        reopened: how many of them had a dead key.
        left: letters that stay dead: they have no key, or their key changed during the redrive.
    """

    returned: int = 0
    reopened: int = 0
    left: int = 0


def redrive(
    consumer: Consumer,
    adapter: Adapter,
    *,
    limit: int | None = None,
    idle_s: float = 3.0,
    on_letter: Callable[[Redriven], object] | None = None,
) -> Redriven:
    """Return a consumer's dead letters to its subject. A crash loses none, but may return a letter twice.

    The key is reopened first, then the message is published and confirmed, and only then is the letter removed.

    Args:
        consumer: the consumer of the dead letters.
        adapter: for the broker, not open; closed afterwards.
        limit: the most letters; None: all.
        idle_s: seconds without a letter after which the redrive ends.
        on_letter: called after each letter with the counts so far.

    Raises:
        ConfigurationError: the adapter cannot receive dead letters, or the checker has no admin.
        AdapterError: the broker failed.
        StoreError: the store did not answer.
    """
    source = adapter.dead_letter_subject(consumer.subject)
    if source is None:
        raise ConfigurationError(
            f"{type(adapter).__name__} cannot receive dead letters, so it cannot return them"
        )
    admin = consumer.checker.admin()
    done = Redriven()
    left: list[Delivery] = []
    try:
        adapter.open([_reader(source, consumer)])
        last = time.monotonic()
        while time.monotonic() - last < idle_s:
            room = _MAX_RECEIVED if limit is None else min(limit - done.returned - done.left, _MAX_RECEIVED)
            if room <= 0:
                break
            for delivery in adapter.receive(room, _WAIT_S):
                last = time.monotonic()
                done = _return(consumer, adapter, admin, delivery, done)
                if done.left > len(left):
                    left.append(delivery)
                if on_letter is not None:
                    on_letter(done)
        for delivery in left:
            adapter.requeue(delivery)
    finally:
        adapter.close()
    return done


def _return(
    consumer: Consumer, adapter: Adapter, admin: KeyAdmin, delivery: Delivery, done: Redriven
) -> Redriven:
    from idempotent.adapters.copies import without_reason

    letter = delivery.message
    message = Message(
        consumer.subject, letter.body, id=letter.id, headers=without_reason(letter.headers), raw=letter.raw
    )
    try:
        key = consumer.binding.requests.of(message).key
    except MessageError:
        return replace(done, left=done.left + 1)
    record = admin.get(key)
    dead = record is not None and record.status is KeyStatus.DEAD
    if dead and record is not None and not admin.reopen(record):
        return replace(done, left=done.left + 1)
    adapter.publish(message)
    adapter.settle(delivery, _ACK)
    return replace(done, returned=done.returned + 1, reopened=done.reopened + dead)


def _reader(source: str, consumer: Consumer) -> Consumer:
    """The consumer that reads the dead letters, in a group of its own: the consumer's own group may be running."""
    from idempotent.checkers import MemoryChecker

    registry = Registry()
    return registry.consumer(source, group=f"{consumer.group}-redrive", checker=MemoryChecker())(
        lambda _: None
    )
