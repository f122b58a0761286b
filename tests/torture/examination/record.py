"""Record: what the journals of a run say, as far as they were read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

from idempotent.outcomes import Outcome
from tests.torture.faults.kinds import Incident, Mishap
from tests.torture.journal import What
from tests.torture.stores import Effect
from tests.torture.traffic import is_sent, sent_id

_FINAL: Final = frozenset(
    outcome.value for outcome in (Outcome.PROCESSED, Outcome.DUPLICATE, Outcome.DEAD, Outcome.IGNORED)
)
_EFFECT_FIELDS: Final = tuple(field.name for field in fields(Effect))


class Record:
    """The lines of all journals, counted and sorted.

    Args:
        overtaken: whether later messages overtake one that fails or waits in the process of this name.
        record: called with each incident outside the schedule.

    Attributes:
        outcomes: settled deliveries, by their outcome.
        done: ids with a final outcome.
        arrived: ids that a handler has sent, and that have a final outcome behind the second inbox.
        settled: the time when (id, process) was first settled as processed.
        effects: those that are written to journals.
        published: what relays have published, as effects with their places in their order keys.
        may_be_late: ids that failed or waited where later messages overtake them.
        wrong: ids with other headers, or another result, than they should have.
    """

    def __init__(self, overtaken: Callable[[str], bool], record: Callable[[Incident], object]) -> None:
        self.outcomes: Final[Counter[str]] = Counter()
        self.done: Final[set[str]] = set()
        self.arrived: Final[set[str]] = set()
        self.settled: Final[dict[tuple[str, str], float]] = {}
        self.effects: Final[list[Effect]] = []
        self.published: Final[list[Effect]] = []
        self.may_be_late: Final[set[str]] = set()
        self.wrong: Final[set[str]] = set()
        self._overtaken = overtaken
        self._record = record

    def read(self, line: Mapping[str, Any]) -> None:
        """Add one line."""
        match What(line["what"]):
            case What.SETTLED:
                self._settle(line)
            case What.EFFECT:
                self.effects.append(Effect(**{name: line[name] for name in _EFFECT_FIELDS}))
            case What.PUBLISHED:
                self.published.append(
                    Effect(line["id"], line["position"], line["process"], 1, 0, line["at"], line["wall"])
                )
            case What.RAISED | What.HELD:
                self._note_late(line)
            case What.WRONG:
                self.wrong.add(line["id"])
            case What.STARVED:
                self._record(Incident(Mishap.STARVED, line["since"], line["at"], line["process"]))

    def finish(self, known_as: str) -> None:
        """Add one that is processed."""
        (self.arrived if is_sent(known_as) else self.done).add(known_as)

    def _settle(self, line: Mapping[str, Any]) -> None:
        outcome = line["outcome"]
        self.outcomes[outcome] += 1
        if outcome in _FINAL:
            self.finish(line["id"])
        else:  # the store may have failed its handler
            self._note_late(line)
        if outcome == Outcome.PROCESSED.value:
            self.settled.setdefault((line["id"], line["process"]), line["at"])

    def _note_late(self, line: Mapping[str, Any]) -> None:
        # What relays publish is in order even so.
        if self._overtaken(line["process"]) and not is_sent(line["id"]):
            self.may_be_late.add(line["id"])


def _published(line: Mapping[str, Any]) -> Effect:
    return Effect(line["id"], line["position"], line["process"], 0, 0, line["at"], line["wall"])


def sent_ids(ledger: Iterable[Effect]) -> list[str]:
    """How the messages are known that were sent with the first effects of a run with an outbox."""
    return [sent_id(effect.id) for effect in ledger if not is_sent(effect.id)]
