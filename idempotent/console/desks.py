"""What the console knows of one consumer, a `Desk`: its dead letters and keys as they were read, and what is done.

Reading a broker takes seconds, so it is done once, in a thread, and people look at the result (`Snapshot`). What they
choose there is a `Proposal`, which they confirm; then a `Job` carries it out.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import uuid4

from idempotent.adapters.base import Adapter
from idempotent.admin import KeyFilter, KeyRecord
from idempotent.checkers.pauses import Pauses
from idempotent.claims import Guarantee, KeyStatus
from idempotent.console.stores import ConsoleStore
from idempotent.consumer import AnyConsumer
from idempotent.errors import ConfigurationError, IdempotentError, described, mask
from idempotent.forks import free_in_child
from idempotent.keys import Key, key_from_text
from idempotent.logs import EventLog
from idempotent.redrive import ALL, Letter, LetterFilter, Redriven, drop, error_group, letters, redrive
from idempotent.values import value
from idempotent.views.keys import numbers, span
from idempotent.views.letters import changed_meanwhile, in_full, why_left, why_stopped
from idempotent.views.text import count

log = EventLog(__name__)
MOST: Final = 10_000
"""The most letters, and the most dead keys, that are read."""
_MOST_LAPSED: Final = 1000
_MOST_PROPOSALS: Final = 50
# Others decide about what they were shown while the letters are read again.
_KEPT: Final = 3


class BusyError(IdempotentError):
    """The console reads or changes the letters of this consumer already. Wait until that has ended."""


class ChangedError(IdempotentError):
    """What you decided about is not there any more, or has changed. Look again."""


class _StoppedError(Exception):
    """A person has pressed the button Stop."""


@value
class Item:
    """A dead letter, or a key without one.

    Attributes:
        id: the place of the letter, or the hash of the key in hex.
        label: its key, or else its place.
        error: the group of its reason.
        reason: why it is dead.
        record: its key; None: it is not stored.
        key: its key, also one that is not stored; None: it has none.
        letter: all about the letter but its body, of `in_full`; None: a key alone.
    """

    id: str
    label: str
    error: str
    reason: str
    record: KeyRecord | None
    key: Key | None
    letter: Mapping[str, Any] | None = None

    @property
    def dead(self) -> KeyRecord | None:
        """Its key, if that is dead."""
        return self.record if self.record is not None and self.record.status is KeyStatus.DEAD else None

    @property
    def state(self) -> str | None:
        """The state of its key, as `Letter.state`."""
        return None if self.record is None else self.record.state


@value
class Snapshot:
    """What was read of a consumer.

    Attributes:
        id: differs from reading to reading.
        of: its dead `letters`, its dead `keys` that have none of these letters, and its keys in progress whose lease
            has ended, `lapsed`; each in the order of their names.
        cut: of which of these there are more.
        at: when it was read, on the clock of `time.monotonic`.
    """

    id: str
    of: Mapping[str, Sequence[Item]]
    cut: frozenset[str]
    at: float

    @property
    def age_s(self) -> int:
        """Seconds since it was read."""
        return int(time.monotonic() - self.at)


@dataclass
class Job:
    """Something that takes a while, in a thread of its own.

    Attributes:
        words: what is being done.
        progress: how many letters so far.
        result: what came of it, at its end.
        is_error: whether that is an error.
        ended_at: when it ended, on the clock of `time.monotonic`.
    """

    words: str
    progress: int = 0
    result: str = ""
    is_error: bool = False
    ended_at: float = 0.0
    ended: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def said(self) -> str:
        """What is being done, or what came of it; "": nothing worth a word."""
        return self.result if self.ended.is_set() else f"{self.words}: {self.progress:,} so far"

    @property
    def ago(self) -> str:
        """How long ago it ended; "": it has not, or nothing worth a word came of it."""
        if not self.ended.is_set() or not self.result:
            return ""
        return f"({span(int((time.monotonic() - self.ended_at) * 1_000_000))} ago)"

    def seen(self, number: int) -> None:
        """Note the progress. Raises _StoppedError: it shall stop."""
        self.progress = number
        if self.stop.is_set():
            raise _StoppedError


@dataclass
class Proposal:
    """A change that a person has yet to confirm.

    Attributes:
        id: names it once.
        action: redrive, drop, retry or done.
        items: what it changes, as it was shown.
        is_all: whether these are all letters that were read.
        counted: the job that counts what a redrive would do.
        found: what it found.
    """

    id: str
    action: str
    items: Sequence[Item]
    is_all: bool = False
    counted: Job | None = None
    found: Redriven | None = None


class Desk:
    """One consumer: of the application's module, or one of which a store has keys.

    Args:
        id: names the desk in addresses.
        name: `subject:group`.
        store: where its keys are; None: it keeps none, or shows none.
        consumer: the consumer; None: only its keys are known.
        adapter: makes an adapter that reads its letters; None: no broker is known.
        idle_s: seconds without a letter after which a reading ends.
    """

    def __init__(
        self,
        id: str,
        name: str,
        store: ConsoleStore | None,
        consumer: AnyConsumer | None = None,
        adapter: Callable[[], Adapter] | None = None,
        idle_s: float = 3.0,
    ) -> None:
        self.id: Final = id
        self.name: Final = name
        self.store: Final = store
        # Of the consumer's own checker, whose retention a key that is done gets.
        checker = None if store is None else store.checker if consumer is None else consumer.checker
        self.admin: Final = None if checker is None else checker.admin()
        self.pauses: Pauses | None = None
        if checker is not None:
            with suppress(ConfigurationError):  # its dead keys expire, and a pause would
                self.pauses = Pauses(checker)
        self.is_unseen: Final = checker is not None and checker.guarantee is Guarantee.TRANSACTIONAL
        self._source: Final = None if consumer is None or adapter is None else (consumer, adapter)
        self._idle_s = idle_s
        self._lock = free_in_child(threading.Lock())
        self.job: Job | None = None
        self._snapshots: deque[Snapshot] = deque(maxlen=_KEPT)
        self.proposals: Final[OrderedDict[str, Proposal]] = OrderedDict()

    @property
    def has_letters(self) -> bool:
        """Whether a broker is known."""
        return self._source is not None

    @property
    def snapshot(self) -> Snapshot | None:
        """What was read last; None: nothing yet."""
        return self._snapshots[-1] if self._snapshots else None

    @property
    def busy(self) -> Job | None:
        """The job that runs now; None: nothing runs."""
        return None if self.job is None or self.job.ended.is_set() else self.job

    @property
    def counts(self) -> dict[str, int]:
        """How many of its keys are dead, in progress and lapsed; nothing while that is not known."""
        counted = None if self.store is None else self.store.counted(0)
        return {} if counted is None or counted.error else numbers(counted.keys, self.name)

    def start(
        self, words: str, work: Callable[[Job], str], on_end: Callable[[str], None] | None = None
    ) -> Job:
        """Begin a job, in a thread.

        Args:
            words: what it does.
            work: does it, and returns what came of it.
            on_end: called with that, or with the error, if it changes something; then the letters are read again.

        Raises:
            BusyError: another one is under way.
        """
        with self._lock:
            if self.busy:
                raise BusyError
            self.job = job = Job(words)
        thread = threading.Thread(target=self._run, args=(job, work, on_end), name="idempotent-console")
        thread.daemon = True
        thread.start()
        return job

    def _run(self, job: Job, work: Callable[[Job], str], on_end: Callable[[str], None] | None) -> None:
        try:
            job.result = self._result(job, work)
            if on_end is not None:
                on_end(job.result)
                job.stop.clear()
                job.words, job.progress = f"{job.result} Reading again", 0
                if failed := self._result(job, self._read):
                    job.result += f" The letters were not read again. {failed}"
        finally:
            job.ended_at = time.monotonic()
            job.ended.set()

    def _result(self, job: Job, work: Callable[[Job], str]) -> str:
        """What came of it, or the error."""
        try:
            return work(job)
        except _StoppedError:
            return f"Stopped after {job.progress:,}."
        except IdempotentError as error:
            job.is_error, why = True, mask(str(error))
        except Exception as error:
            job.is_error, why = True, described(error)
            log.exception("console_failed", extra={"consumer": self.name})
        return f"Failed after {job.progress:,}: {why}" if job.progress else f"Failed: {why}"

    def read(self) -> Job:
        """Begin to read the letters and keys. Raises BusyError: something is under way."""
        return self.start("reading", self._read)

    def _read(self, job: Job) -> str:
        found: list[Item] = []
        if self._source is not None:
            found = [_item(each) for each in letters(*self._open(), idle_s=self._idle_s, on_letter=job.seen)]
        dead, lapsed = self._keys(MOST + 1, KeyStatus.DEAD), self._keys(_MOST_LAPSED)
        with_letter = {each.record.hash.hex() for each in found if each.record is not None}
        without = [each for each in dead[:MOST] if each.id not in with_letter]
        of = {"letters": found, "keys": without, "lapsed": lapsed}
        cut = {"letters": len(found) >= MOST, "keys": len(dead) > MOST}
        read_now = Snapshot(
            uuid4().hex,
            {kind: sorted(items, key=name_of) for kind, items in of.items()},
            frozenset(kind for kind, is_cut in cut.items() if is_cut),
            time.monotonic(),
        )
        self._snapshots.append(read_now)
        return ""

    def _keys(self, limit: int, status: KeyStatus | None = None) -> list[Item]:
        """Dead keys, or without a status those whose lease has ended."""
        if self.admin is None:
            return []
        statuses = frozenset() if status is None else frozenset({status})
        selection = KeyFilter(self.name, statuses, lapsed=status is None)
        return [key_item(self.name, record) for record in self.admin.list(selection, limit=limit)]

    def body(self, place: str) -> bytes | None:
        """The body of a letter, read again; None: it has none. Raises ChangedError: there is no such letter."""
        found: list[Letter] = []

        def work(job: Job) -> str:
            only = LetterFilter(names=frozenset({place}))
            found.extend(letters(*self._open(), only=only, limit=1, idle_s=self._idle_s, on_letter=job.seen))
            return ""

        job = self.start("reading a body", work)
        job.ended.wait()
        if not found:
            raise ChangedError(job.result or "The letter is not there any more: read the letters again.")
        return found[0].message.body

    def shown(self, reading: str) -> Snapshot:
        """What was read, by its id. Raises ChangedError: that was three readings ago."""
        for each in self._snapshots:
            if each.id == reading:
                return each
        raise ChangedError("The letters were read again, and again, since this was shown. Look again.")

    def propose(self, action: str, items: Sequence[Item], snapshot: Snapshot | None = None) -> Proposal:
        """Prepare a change, which `confirm` carries out. For a redrive, count what it would do.

        Args:
            action: redrive, drop, retry or done.
            items: what it changes.
            snapshot: where they were shown; None: keys that are as they were shown.

        Raises:
            BusyError: something is under way.
        """
        is_all = snapshot is not None and len(items) == len(snapshot.of["letters"])
        made = Proposal(uuid4().hex, action, items, is_all)
        if action == "redrive":

            def rehearse(job: Job) -> str:
                made.found = self._redrive(made, job, dry_run=True)
                return ""

            made.counted = self.start("counting", rehearse)
        with self._lock:
            self.proposals[made.id] = made
            while len(self.proposals) > _MOST_PROPOSALS:
                self.proposals.popitem(last=False)
        return made

    def confirm(self, proposal: Proposal, note: str, on_end: Callable[[str], None], **options: Any) -> None:
        """Begin a change that was proposed; `options` are those of a redrive. Raises BusyError."""
        items = proposal.items

        def work(job: Job) -> str:
            if proposal.action == "redrive":
                done = self._redrive(proposal, job, **options)
                return self._told(done, len(items))
            return (
                self._drop(proposal, note, job) if proposal.action == "drop" else self._resolve(proposal, job)
            )

        self.start(f"{proposal.action}: {count(len(items), 'item')}", work, on_end)
        with self._lock:
            self.proposals.pop(proposal.id, None)

    def _open(self) -> tuple[AnyConsumer, Adapter]:
        assert self._source is not None
        consumer, adapter = self._source
        return consumer, adapter()

    def _redrive(self, proposal: Proposal, job: Job, **options: Any) -> Redriven:
        consumer, adapter = self._open()
        items, limit, only = proposal.items, None, _exactly(proposal)
        if consumer.checker.remembers.by_position and proposal.is_all:
            only, limit = ALL, len(items)  # a choice would be refused
        return redrive(
            consumer,
            adapter,
            only=only,
            limit=limit,
            idle_s=self._idle_s,
            on_letter=lambda now: job.seen(now.returned),
            **options,
        )

    def _told(self, done: Redriven, chosen: int) -> str:
        text = f"{count(done.returned, 'message')} returned, {count(done.reopened, 'key')} reopened."
        if done.stopped:
            return f"{text} Stopped after the first ones: {why_stopped(done)}"
        mine = replace(done, left=done.left - done.others, others=0)  # those of others were not chosen
        if mine.left and self._source is not None:
            text += f" {count(mine.left, 'letter')} left: {why_left(mine, self._source[0].checker.command_options)}"
        return text + _gone(chosen - done.returned - mine.left)

    def _drop(self, proposal: Proposal, note: str, job: Job) -> str:
        only = _exactly(proposal)
        done = drop(*self._open(), only=only, note=note, idle_s=self._idle_s, on_letter=job.seen)
        text = f"{count(done.dropped, 'letter')} dropped."
        if done.changed:
            text += f" {changed_meanwhile(done.changed)}."
        return text + _gone(len(proposal.items) - done.dropped - len(done.changed))

    def _resolve(self, proposal: Proposal, job: Job) -> str:
        assert self.admin is not None
        is_retry, changed, resolved = proposal.action == "retry", [], 0
        change = self.admin.reopen if is_retry else self.admin.mark_done
        for each in proposal.items:
            if each.record is not None and change(each.record):
                resolved += 1
                job.seen(resolved)
            else:
                changed.append(each.label)
        text = f"{count(resolved, 'key')} {'reopened' if is_retry else 'marked done'}."
        return f"{text} {changed_meanwhile(changed)}." if changed else text


def key_item(consumer: str, record: KeyRecord) -> Item:
    """A key as an item."""
    reason = record.last_error or ""
    name = record.hash.hex()
    return Item(name, record.text, error_group(consumer, reason), reason, record, key_from_text(name))


def _item(letter: Letter) -> Item:
    """A letter as an item, without its body."""
    return Item(
        letter.place, letter.label, letter.error, letter.reason, letter.record, letter.key, in_full(letter)
    )


def _gone(number: int) -> str:
    return f" {count(number, 'letter')} gone: returned or dropped by somebody else." if number > 0 else ""


def name_of(item: Item) -> tuple[str, str]:
    """What items are ordered by."""
    return item.label, item.id


def _exactly(proposal: Proposal) -> LetterFilter:
    return LetterFilter(shown={each.id: each.state for each in proposal.items})
