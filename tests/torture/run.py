"""TortureRun: a producer and consumers under injected faults, and the examination of their history."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from examples.demo.stage.leftovers import LOOKS, FindLeft, Silence, left_over, letters
from examples.demo.stage.places import place_at
from examples.demo.stage.producer import Producer
from idempotent.errors import AdapterError, ConfigurationError, StoreError
from idempotent.message import Message
from idempotent.outcomes import Outcome
from tests.torture.addresses import proxied
from tests.torture.consumers import ConsumerSlot
from tests.torture.examination.expected import Explanations
from tests.torture.examination.history import EXAMPLES, examine, traces
from tests.torture.examination.record import Record, sent_ids
from tests.torture.examination.report import TortureReport
from tests.torture.faults.injector import FaultInjector
from tests.torture.faults.kinds import Incident
from tests.torture.faults.schedule import FeasibleFaults, Servers, schedule
from tests.torture.places import MOST_BATCH, places_of
from tests.torture.settings import SLOW, Job, Settings
from tests.torture.stores import Effect, EffectStore, store_at
from tests.torture.traffic import (
    Behaviour,
    Traffic,
    behaviour_of,
    group_of,
    id_of,
    known_as,
)

_LOOK_EVERY_S: Final = 0.03
_START_S: Final = 60.0
_STALLED_S: Final = 90.0


class TortureRun:
    """One run over one broker and one checker.

    Args:
        settings: how much of everything.
        servers: their URLs, and the functions that restart them.
        name: part of the names of queues, topics, tables and keys: an identifier.
        folder: for journals and logs.
        find_left: returns the messages that the broker still holds for the consumers.
    """

    def __init__(
        self,
        settings: Settings,
        servers: Servers,
        name: str,
        folder: Path,
        *,
        find_left: FindLeft = left_over,
    ) -> None:
        """Create nothing on the servers yet.

        Raises:
            ConfigurationError: these servers cannot be used.
        """
        self.settings: Final = settings
        self.store: Final[EffectStore] = store_at(
            servers.checker_url,
            servers.broker_url,
            name,
            lease_s=settings.lease_s,
            outbox=settings.outbox,
        )
        self._places = places_of(servers.broker_url, name, outbox=settings.outbox)
        self._place = self._places[0]
        self._in_order = self._place.has_offsets
        if self.store.by_position and not self._in_order:
            raise ConfigurationError("an OffsetChecker counts offsets, which only kafka:// has")
        self.feasible: Final = FeasibleFaults.of(
            servers, self.store, is_kafka=self._in_order, outbox=settings.outbox
        )
        self.faults: Final = schedule(settings, self.feasible.kinds, self.feasible.points)
        self.incidents: list[Incident] = []
        self.elapsed_s = 0.0
        self.began = 0.0
        self._folder = folder
        self._find_left = find_left
        self.record: Final = Record(self._overtaken, self._record)
        self._ledger: Sequence[Effect] = self.record.effects
        self._dead_letters: list[str] = []
        self._left: list[str] = []
        processes = range(len(settings.roles))
        self._shapes = [settings.shape(number, in_order=self._in_order) for number in processes]
        self._slots = [self._slot(number) for number in processes]
        self._producer_proxy, producer_url = proxied(servers.broker_url)
        self.traffic: Final = Traffic(
            self._place, settings, resends=not self.store.by_position, unfinished=self._unfinished
        )
        producers = place_at(producer_url, self._place.subject, MOST_BATCH)
        self.producer: Final = Producer(producers.adapter, self.traffic)
        self._injector = FaultInjector(
            self.faults, self._slots, self._producer_proxy, servers, self.store, settings.seed, self._record
        )

    @property
    def broker(self) -> str:
        """The broker's name."""
        return self._place.broker

    @property
    def finished(self) -> int:
        """Messages with a final outcome."""
        return len(self.record.done)

    def run(self, on_tick: Callable[[], object] = lambda: None) -> None:
        """Send, consume and inject faults; then process the rest, and read what the servers hold.

        Raises:
            AdapterError: the broker cannot be used at the beginning or the end.
            StoreError: the store cannot.
        """
        self.store.prepare()
        try:
            for place in self._places:
                place.make()
            try:
                self._torture(on_tick)
                self._read_the_servers()
            finally:
                for place in self._places:
                    with suppress(AdapterError):
                        place.remove()
        finally:
            for slot in self._slots:
                slot.close()
            if self._producer_proxy is not None:
                self._producer_proxy.close()
            with suppress(StoreError):  # if the store failed, its error is being raised already
                self.store.clean()
            self._injector.close()

    def report(self) -> TortureReport:
        """The figures of the run, and the findings."""
        guarantee = self.store.guarantee
        seed = self.settings.seed
        numbers = range(self.traffic.begun)
        from_handlers = sent_ids(self._ledger) if self.settings.outbox else []
        findings = examine(
            sent=[*map(id_of, range(self.traffic.confirmed)), *from_handlers],
            perhaps_sent=[*map(id_of, numbers), *from_handlers],
            poison=(id_of(n) for n in numbers if behaviour_of(seed, n) is Behaviour.POISON),
            effects=self._ledger,
            dead_letters=self._dead_letters,
            by_position=self.store.by_position,
            may_be_late=self.record.may_be_late,
            explanations=Explanations(guarantee, self.incidents, self.record.settled, self.settings.lease_s),
            wrong=self.record.wrong,
            published=self.record.published,
        )
        return TortureReport(
            settings=self.settings,
            broker=self.broker,
            checker=self.store.url,
            guarantee=guarantee,
            messages=self.traffic.confirmed,
            duplicates=self.traffic.duplicates,
            sent_again=self.producer.sent_again,
            settled=self.record.outcomes.total(),
            skipped=self.record.outcomes[Outcome.DUPLICATE.value],
            left=tuple(self._left),
            incidents=tuple(self.incidents),
            missing={kind.value: reason for kind, reason in self.feasible.missing.items()},
            seconds=self.elapsed_s,
            findings=findings,
            traces=traces(
                [slot.path for slot in self._slots],
                self._ledger,
                [*findings.suspects, *self._left[:EXAMPLES]],
                self.began,
            ),
        )

    # Private

    def _unfinished(self) -> int:
        return self.traffic.begun - len(self.record.done)

    def _overtaken(self, process: str) -> bool:
        """Whether later messages overtake one that fails or waits in this process: in most groups."""
        return not self.store.keeps_order and self._shapes[int(process.partition(".")[0])].batch_size > 1

    def _slot(self, number: int) -> ConsumerSlot:
        shape = self._shapes[number]
        job = Job(
            broker_url=self._place.url,
            checker_url=self.store.url,
            name=self.store.name,
            lease_s=self.settings.lease_s,
            concurrency=shape.concurrency,
            batch_size=shape.batch_size,
            results=number % 2 == 0 and not self.store.by_position,
            role=self.settings.roles[number],
        )
        has_async = not (self.store.is_transactional and self.store.is_file)
        return ConsumerSlot(number, job, self._folder, self._record, both_kinds=has_async)

    def _torture(self, on_tick: Callable[[], object]) -> None:
        began = self.began = time.monotonic()
        for slot in self._slots:
            slot.start()
        self.producer.start()
        while not all(slot.at_work for slot in self._slots) and time.monotonic() - began < _START_S:
            self._tick(on_tick)
            for slot in self._slots:
                slot.look()
        calm_began = time.monotonic()
        while (elapsed_s := time.monotonic() - calm_began) < self.settings.seconds:
            self._injector.act(elapsed_s)
            self._tick(on_tick)
        self._injector.calm()
        self.traffic.finish()
        self._finish(on_tick)
        for _ in range(LOOKS - 1):
            if self._left:
                for slot in self._slots:
                    slot.start()
                self._finish(on_tick)

    def _finish(self, on_tick: Callable[[], object]) -> None:
        self._process_the_rest(on_tick)
        for slot in self._slots:
            slot.stop()
        self._tick(on_tick)
        self._left = [
            *self.store.waiting(),
            *(
                known_as(left)
                for place in self._places
                for left in self._find_left(
                    place.adapter(), place.subject, group_of(place.subject), self.store.checker()
                )
            ),
        ]

    def _process_the_rest(self, on_tick: Callable[[], object]) -> None:
        silence, asked = Silence(), 0.0
        # A copy of a processed message may still be held, for as long as a lease of its key may last.
        longest_silence_s = self._place.quiet_s + SLOW * self.settings.lease_s
        while True:
            self._tick(on_tick)
            for slot in self._slots:
                slot.look()
            if not all(slot.is_up for slot in self._slots):
                silence.restart()
            quiet_s = silence.seconds(self.record.outcomes.total())
            if quiet_s > self._place.quiet_s and time.monotonic() - asked > self._place.quiet_s:
                self._read_the_ledger()
                asked = time.monotonic()
            all_done = (
                self.producer.finished
                and self.finished >= self.traffic.begun
                and len(self.record.arrived) >= self.traffic.sent_by_handlers
            )
            if quiet_s > (longest_silence_s if all_done else _STALLED_S):
                return

    def _tick(self, on_tick: Callable[[], object]) -> None:
        for slot in self._slots:
            for line in slot.journal():
                self.record.read(line)
        self.elapsed_s = time.monotonic() - self.began
        on_tick()
        time.sleep(_LOOK_EVERY_S)

    def _record(self, incident: Incident) -> None:
        self.incidents.append(incident)

    def _read_the_ledger(self) -> None:
        """Count what was committed just before a kill: no journal says so, and it may never be delivered again."""
        if self.store.is_transactional:
            for effect in self.store.effects():
                self.record.finish(effect.id)

    def _read_the_servers(self) -> None:
        if self.store.is_transactional:
            self._ledger = list(self.store.effects())
        for place in self._places:
            adapter = place.reader()
            source = adapter.dead_letter_subject(place.subject)
            if source is not None:
                self._dead_letters += _ids(letters(adapter, source))


def _ids(messages: Iterable[Message]) -> list[str]:
    return [str(message.id) for message in messages]
