"""Dropping: dead letters are removed, and their messages never run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from idempotent.claims import ClaimRequest, KeyStatus, Verdict
from idempotent.consumer import AnyConsumer
from idempotent.keys import Key
from idempotent.logs import EventLog
from idempotent.observe.log_lines import about_message
from idempotent.redrive.reading import MAX_RECEIVED, Letter, LetterFilter, Reading

if TYPE_CHECKING:
    from idempotent.adapters.base import Adapter

log = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class Dropped:
    """What became of letters that were to be dropped.

    Attributes:
        dropped: how many were removed.
        changed: what stays, by key or place, because its key is not as it was shown, or changed during the work.
    """

    dropped: int = 0
    changed: tuple[str, ...] = ()


def drop(
    consumer: AnyConsumer,
    adapter: Adapter,
    *,
    only: LetterFilter,
    note: str,
    limit: int | None = None,
    idle_s: float = 3.0,
    on_letter: Callable[[int], object] | None = None,
) -> Dropped:
    """Remove dead letters, whose messages will never run.

    The key of a letter is marked as done first, also one that is not stored, so that later deliveries of its message
    are duplicates. But where another letter of the key stays, such as a copy, the key stays dead: that letter can still
    be returned. All letters are read before the first is removed. Each one is logged (`letter_dropped`) with the note.

    Args:
        consumer: the consumer of the letters.
        adapter: for the broker, not open; closed afterwards.
        only: which letters.
        note: why, and by whom.
        limit: the most letters to remove; None: no limit.
        idle_s: seconds without a letter after which the work ends.
        on_letter: called after each letter with the number of those removed.

    Raises:
        ConfigurationError, AdapterError, StoreError: as `redrive`.
    """
    dropped, changed = 0, []
    with Reading(consumer, adapter, idle_s) as reading:
        found = [
            (delivery, letter)
            for delivery, letter in reading.each(lambda: MAX_RECEIVED)
            if letter is not None
        ]
        meant = [pair for pair in found if only.matches(pair[1])][:limit]
        places = {id(delivery) for delivery, _ in meant}
        kept = {letter.key for delivery, letter in found if id(delivery) not in places}
        done: set[Key | None] = {None} if reading.admin is not None else {letter.key for _, letter in meant}
        for delivery, letter in meant:
            is_resolved = letter.key in done or letter.key in kept
            if only.has_changed(letter) or not (is_resolved or _is_done(consumer, reading, letter)):
                changed.append(letter.label)
                continue
            if letter.key not in kept:
                done.add(letter.key)
            reading.settle(delivery)
            dropped += 1
            extra = {
                **about_message(letter.message),
                "consumer": consumer.name,
                "key": None if letter.key is None else str(letter.key),
                "position": letter.place,
                # Its text may quote the message.
                "error": letter.reason.partition(":")[0],
                "note": note,
            }
            log.warning("letter_dropped", extra=extra)
            if on_letter is not None:
                on_letter(dropped)
    return Dropped(dropped, tuple(changed))


def _is_done(consumer: AnyConsumer, reading: Reading, letter: Letter) -> bool:
    """Whether no delivery of a letter's message runs any more, because its key is done now."""
    assert reading.admin is not None
    assert letter.key is not None
    record = letter.record
    if record is not None:
        return record.status is KeyStatus.DONE or reading.admin.mark_done(record)
    decision = consumer.checker.protocol.claim(ClaimRequest(letter.key))
    if decision.claim is None:
        return decision.verdict is Verdict.DUPLICATE
    return consumer.checker.protocol.complete(decision.claim)
