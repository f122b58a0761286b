"""Returning: dead letters go back to their subject so that their messages run, and their keys are reopened."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from idempotent.claims import UNKNOWN_EFFECT, KeyStatus
from idempotent.consumer import AnyConsumer
from idempotent.errors import ConfigurationError
from idempotent.keys import Key
from idempotent.logs import EventLog
from idempotent.observe.log_lines import about_message
from idempotent.redrive.reading import ALL, MAX_RECEIVED, Letter, LetterFilter, Reading
from idempotent.validation import number, seconds, whole

if TYPE_CHECKING:
    from idempotent.adapters.base import Adapter, Delivery

LEAST_RATE: Final = 0.001
"""The lowest `rate` of a redrive: a letter each 1,000 seconds."""
log = EventLog(__name__)
_LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Redriven:
    """What a redrive did.

    Attributes:
        returned: letters published to their subject again.
        reopened: how many of them had a dead key.
        left: letters that stay dead: they have no key, or they are counted below.
        unknown: letters that stay because their effect may have happened; a person decides with `keys resolve`.
        again: letters that stay because their message was returned already: copies of it, or it died again.
        others: letters of other subjects or groups, which share the dead-letter target.
        unreadable: letters that stay as they are because a part of them cannot be decoded, and would be lost.
        died: of the first ones, which `canary` waited for, those that died again: the redrive ended with them.
        open: of the first ones, those that were neither done nor dead in time: the redrive ended with them.
        undated: letters that a choice by time passed over because their key is not dead, such as those that were
            returned before, or whose redrive was interrupted.
        changed: letters that stay, by key or place, because their key is not as it was shown, or changed during the
            redrive.
    """

    returned: int = 0
    reopened: int = 0
    left: int = 0
    unknown: int = 0
    again: int = 0
    others: int = 0
    unreadable: int = 0
    died: int = 0
    open: int = 0
    undated: int = 0
    changed: tuple[str, ...] = ()

    @property
    def stopped(self) -> bool:
        """Whether the redrive ended because of its first letters."""
        return bool(self.died or self.open)


def redrive(
    consumer: AnyConsumer,
    adapter: Adapter,
    *,
    only: LetterFilter = ALL,
    limit: int | None = None,
    rate: float | None = None,
    canary: int | None = None,
    canary_wait_s: float = 60.0,
    dry_run: bool = False,
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
        only: which letters; the others are neither returned nor counted.
        limit: the most letters to return; None: all.
        rate: the most letters to return in a second; None: as many as the broker takes.
        canary: return so many letters first, wait until a worker has processed them, and go on only if all are done.
            Fewer letters are waited for too.
        canary_wait_s: how long that may take, in seconds.
        dry_run: count, and change nothing.
        idle_s: seconds without a letter after which the redrive ends.
        include_unknown: also return messages whose effect may have happened (`on_expired_lease="park"`); if it had, it
            happens twice.
        on_letter: called after each letter with the counts so far.

    Raises:
        ConfigurationError: the adapter cannot receive dead letters, or the checker keeps keys and has no admin; a
            choice of letters or a canary with a checker that recognises positions; a `rate` below 0.001; a `canary`
            below 1.
        AdapterError: the broker failed, or gives nothing to read, for example because a dead-letter topic is missing.
        StoreError: the store did not answer.
    """
    if consumer.checker.remembers.by_position and (only != ALL or canary is not None):
        raise ConfigurationError(
            f"{type(consumer.checker).__name__} keeps no keys: a letter that is returned past one that stays is read "
            "again by the next redrive, and would run twice, and nothing tells what became of it. Return all letters "
            "of this consumer, without a choice or a canary"
        )
    pause_s = 0.0 if rate is None else 1 / number(rate, "rate", least=LEAST_RATE)
    first = 0 if canary is None else whole(canary, "canary")
    wait_s = seconds(canary_wait_s, "canary_wait_s")
    with Reading(consumer, adapter, idle_s) as reading:
        work = _Redrive(reading, include_unknown=include_unknown, dry_run=dry_run, only=only)

        def room() -> int:
            rest = MAX_RECEIVED if limit is None else limit - work.done.returned
            if work.done.stopped:
                return 0
            if work.done.returned < first:
                rest = min(rest, first - work.done.returned)
            return min(rest, 1) if pause_s else rest

        for delivery, letter in reading.each(room):
            if work.handle(delivery, letter):
                if work.done.returned == first:
                    work.await_returned(wait_s)
                elif pause_s:
                    reading.pause(pause_s)
            if on_letter is not None:
                on_letter(work.done)
        if not dry_run and 0 < work.done.returned < first:
            work.await_returned(wait_s)
    return work.done


class _Redrive:
    """Decides about one letter after the other."""

    def __init__(self, reading: Reading, *, include_unknown: bool, dry_run: bool, only: LetterFilter) -> None:
        self.done = Redriven()
        self._reading = reading
        self._include_unknown = include_unknown
        self._dry_run = dry_run
        self._only = only
        self._returned: set[Hashable] = set()
        self._began_us: int | None = None
        """The store's clock when it was first read."""

    def await_returned(self, wait_s: float) -> None:
        """Wait until all that was returned is done, or one of it is dead, or the time is over."""
        until = time.monotonic() + wait_s
        keys = [key for key in self._returned if isinstance(key, Key)]
        while True:
            assert self._reading.admin is not None
            records = self._reading.admin.get_many(keys)
            found = [record.status for record in records.values()]
            died = found.count(KeyStatus.DEAD)
            running = len(keys) - found.count(KeyStatus.DONE) - died
            if not running or died or time.monotonic() >= until:
                self.done = replace(self.done, died=died, open=running)
                return
            self._reading.pause(_LOOK_S)

    def handle(self, delivery: Delivery, letter: Letter | None) -> bool:
        """Return a letter to its subject, and count it. False: it stays a dead letter."""
        if letter is None:
            return self._leave(others=1)
        if not self._only.matches(letter):
            if self._only.within_s is not None and letter.dead is None:
                self.done = replace(self.done, undated=self.done.undated + 1)
            return False
        if letter.undecodable is not None:
            log.warning(
                "letter_unreadable", extra={**about_message(letter.message), "error": str(delivery.error)}
            )
            return self._leave(unreadable=1)
        identity = letter.message.id if self._reading.admin is None else letter.key
        if identity is None:
            return self._leave()
        dead = letter.dead
        if dead is not None and self._began_us is None:
            self._began_us = dead.now_us
        if identity in self._returned or (dead is not None and dead.update_at_us > (self._began_us or 0)):
            return self._leave(again=1)
        if dead is not None and dead.last_error == UNKNOWN_EFFECT and not self._include_unknown:
            return self._leave(unknown=1)
        if self._only.has_changed(letter) or not (self._dry_run or self._return(letter, delivery)):
            return self._leave(changed=(letter.label,))
        self._returned.add(identity)
        done = self.done
        self.done = replace(done, returned=done.returned + 1, reopened=done.reopened + (dead is not None))
        return not self._dry_run

    def _return(self, letter: Letter, delivery: Delivery) -> bool:
        """Reopen the key, publish the message, and only then remove the letter. False: the key has changed."""
        reading = self._reading
        if letter.dead is not None and (reading.admin is None or not reading.admin.reopen(letter.dead)):
            return False
        reading.adapter.put_back(letter.message, reading.consumer.group)
        reading.settle(delivery)
        return True

    def _leave(
        self,
        *,
        unknown: int = 0,
        again: int = 0,
        others: int = 0,
        unreadable: int = 0,
        changed: tuple[str, ...] = (),
    ) -> bool:
        done = self.done
        self.done = replace(
            done,
            left=done.left + 1,
            unknown=done.unknown + unknown,
            again=done.again + again,
            others=done.others + others,
            unreadable=done.unreadable + unreadable,
            changed=done.changed + changed,
        )
        return False
