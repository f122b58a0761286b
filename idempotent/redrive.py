"""Redrive: return dead letters to their subject and reopen their keys, so that they run."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from idempotent.claims import UNKNOWN_EFFECT, KeyStatus
from idempotent.consumer import AnyConsumer
from idempotent.errors import AdapterError, ConfigurationError
from idempotent.logs import EventLog
from idempotent.message import received_message
from idempotent.observe.log_lines import about_message
from idempotent.outcomes import Outcome, Result
from idempotent.registry import Registry

if TYPE_CHECKING:
    from idempotent.adapters.base import Adapter, Delivery

log = EventLog(__name__)
_ACK: Final = Result(Outcome.PROCESSED)
_MAX_RECEIVED: Final = 100
_WAIT_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Redriven:
    """What a redrive did.

    Attributes:
        returned: letters published to their subject again.
        reopened: how many of them had a dead key.
        left: letters that stay dead: they have no key, their key changed during the redrive, or they are counted below.
        unknown: letters that stay because their effect may have happened; a person decides with `keys resolve`.
        again: letters that stay because their message was returned already: copies of it, or it died again.
        others: letters of other subjects or groups, which share the dead-letter target.
        unreadable: letters that stay as they are because a part of them cannot be decoded, and would be lost.
    """

    returned: int = 0
    reopened: int = 0
    left: int = 0
    unknown: int = 0
    again: int = 0
    others: int = 0
    unreadable: int = 0


def redrive(
    consumer: AnyConsumer,
    adapter: Adapter,
    *,
    limit: int | None = None,
    idle_s: float = 3.0,
    include_unknown: bool = False,
    on_letter: Callable[[Redriven], object] | None = None,
) -> Redriven:
    """Return a consumer's dead letters to its subject. A crash loses none, but may return a letter twice.

    The key is reopened first, then the message is published and confirmed, and only then is the letter removed. Letters
    that die while it works, beside a running worker, stay: each message is returned at most once.

    Where several groups receive each message of a subject, the others acknowledge what is returned, and do not run it.

    A checker that recognises positions, such as `OffsetChecker`, has no keys to reopen: a message that comes back has a
    new position, and runs; one that a crash returned twice runs twice.

    Args:
        consumer: the consumer of the dead letters.
        adapter: for the broker, not open; closed afterwards.
        limit: the most letters to return; None: all.
        idle_s: seconds without a letter after which the redrive ends.
        include_unknown: also return messages whose effect may have happened (`on_expired_lease="park"`); if it had, it
            happens twice.
        on_letter: called after each letter with the counts so far.

    Raises:
        ConfigurationError: the adapter cannot receive dead letters, or the checker keeps keys and has no admin.
        AdapterError: the broker failed, or gives nothing to read, for example because a dead-letter topic is missing.
        StoreError: the store did not answer.
    """
    source = adapter.dead_letter_subject(consumer.subject)
    if source is None:
        raise ConfigurationError(
            f"{type(adapter).__name__} cannot receive dead letters, so it cannot return them"
        )
    work = _Redrive(consumer, adapter, include_unknown=include_unknown)
    left: list[Delivery] = []
    try:
        adapter.open([_reader(source, consumer)])
        last = time.monotonic()
        while time.monotonic() - last < idle_s:
            done = work.done
            room = _MAX_RECEIVED if limit is None else min(limit - done.returned, _MAX_RECEIVED)
            if room <= 0:
                break
            for delivery in adapter.receive(room, _WAIT_S):
                last = time.monotonic()
                if not work.handle(delivery):
                    left.append(delivery)
                if on_letter is not None:
                    on_letter(work.done)
        for delivery in left:
            adapter.requeue(delivery)
        if not work.done.returned and not left and not adapter.connected:
            if (waits_for := adapter.waits_for) is None:
                raise AdapterError(
                    f"the broker was not reached within {idle_s:g} seconds; no letter was returned"
                )
            raise AdapterError(
                f"the dead letters of {consumer.subject} cannot be read from {source}: {waits_for}. If it does not "
                "exist, create it; if they go elsewhere, open the adapter with the worker's settings"
            )
    finally:
        adapter.close()
    return work.done


class _Redrive:
    """Decides about one letter after the other."""

    def __init__(self, consumer: AnyConsumer, adapter: Adapter, *, include_unknown: bool) -> None:
        self.done = Redriven()
        self._consumer = consumer
        self._adapter = adapter
        # Who recognises positions has no keys: a message that comes back has a new position, and runs.
        self._admin = None if consumer.checker.remembers.by_position else consumer.checker.admin()
        self._include_unknown = include_unknown
        self._returned: set[Hashable] = set()
        self._began_us: int | None = None
        """The store's clock when it was first read."""

    def handle(self, delivery: Delivery) -> bool:
        """Return a letter to its subject, and count it. False: it stays a dead letter."""
        from idempotent.adapters.copies import came_from

        letter = delivery.message
        if delivery.error is not None:
            log.warning("letter_unreadable", extra={**about_message(letter), "error": str(delivery.error)})
            return self._leave(unreadable=1)
        group = self._adapter.group_of(delivery)
        is_others = group is not None and group != self._consumer.group
        if is_others or not came_from(self._adapter.origin_of(delivery), self._consumer.subject):
            return self._leave(others=1)
        message = received_message(
            self._consumer.subject,
            letter.body,
            letter.id,
            dict(letter.headers),
            redelivered=False,
            position=None,
            raw=letter.raw,
            key=letter.key,
            timestamp=letter.timestamp,
        )
        admin, key = self._admin, self._consumer.key_in(message)
        identity = message.id if admin is None else key
        if identity is None:
            return self._leave()
        record = None if admin is None or key is None else admin.get(key)
        dead = record if record is not None and record.status is KeyStatus.DEAD else None
        if dead is not None and self._began_us is None:
            self._began_us = dead.now_us
        if identity in self._returned or (dead is not None and dead.update_at_us > (self._began_us or 0)):
            return self._leave(again=1)
        if dead is not None and dead.last_error == UNKNOWN_EFFECT and not self._include_unknown:
            return self._leave(unknown=1)
        if admin is not None and dead is not None and not admin.reopen(dead):
            return self._leave()
        self._returned.add(identity)
        self._adapter.put_back(message, self._consumer.group)
        self._adapter.settle(delivery, _ACK)
        done = self.done
        self.done = replace(done, returned=done.returned + 1, reopened=done.reopened + (dead is not None))
        return True

    def _leave(self, *, unknown: int = 0, again: int = 0, others: int = 0, unreadable: int = 0) -> bool:
        done = self.done
        self.done = replace(
            done,
            left=done.left + 1,
            unknown=done.unknown + unknown,
            again=done.again + again,
            others=done.others + others,
            unreadable=done.unreadable + unreadable,
        )
        return False


def _reader(source: str, consumer: AnyConsumer) -> AnyConsumer:
    """The consumer that reads the dead letters, in a group of its own: the consumer's own group may be running."""
    from idempotent.checkers import MemoryChecker

    registry = Registry()
    return registry.consumer(source, group=f"{consumer.group}-redrive", checker=MemoryChecker())(
        lambda _: None
    )
