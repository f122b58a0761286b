"""What the ledger, the incidents and the dead letters say about the promise, and traces of messages that broke it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tests.torture.examination.expected import Explanations
from tests.torture.faults.kinds import Incident
from tests.torture.journal import What
from tests.torture.stores import Effect

EXAMPLES: Final = 5
_LATEST: Final = 12
_TOLD: Final = ("outcome", "error", "attempt", "fence", "position")


@dataclass(frozen=True, slots=True)
class Repeat:
    """An effect that happened again, and the incident that explains it, if the guarantee allows one."""

    first: Effect
    second: Effect
    why: Incident | None


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of a run.

    Attributes:
        effects: how many are in the ledger.
        lost: ids that the broker confirmed and that have neither an effect nor a dead letter.
        repeats: effects that happened again.
        out_of_order: positions whose first effect came after that of a later message of their partition, and places in
            an order key that were first published after a later one.
        dead: ids of poison among the dead letters.
        not_dead: ids of poison that did not become dead letters.
        strange: ids with an effect, a dead letter, headers or a result that they should not have.
    """

    effects: int
    lost: Sequence[str]
    repeats: Sequence[Repeat]
    out_of_order: Sequence[str]
    dead: Sequence[str]
    not_dead: Sequence[str]
    strange: Sequence[str]

    @property
    def unexplained(self) -> list[Repeat]:
        """Repeats without an explanation."""
        return [repeat for repeat in self.repeats if repeat.why is None]

    @property
    def explained(self) -> Counter[str]:
        """The other repeats, by the incident that explains them."""
        return Counter(repeat.why.kind.value for repeat in self.repeats if repeat.why is not None)

    @property
    def suspects(self) -> list[str]:
        """Ids, or positions, of examples of each broken rule."""
        kinds = (
            self.lost,
            self.out_of_order,
            self.not_dead,
            self.strange,
            [repeat.first.id for repeat in self.unexplained],
        )
        return [suspect for kind in kinds for suspect in kind[:EXAMPLES]]

    @property
    def kept(self) -> bool:
        """Whether the promise was kept."""
        return not (self.lost or self.unexplained or self.out_of_order or self.not_dead or self.strange)


def examine(
    *,
    sent: Iterable[str],
    perhaps_sent: Iterable[str],
    poison: Iterable[str],
    effects: Sequence[Effect],
    dead_letters: Iterable[str],
    by_position: bool,
    may_be_late: Collection[str],
    explanations: Explanations,
    wrong: Collection[str] = (),
    published: Sequence[Effect] = (),
) -> Findings:
    """Compare what happened with what should have happened.

    Args:
        sent: ids that the broker confirmed.
        perhaps_sent: ids that the broker may have, confirmed or not.
        poison: ids that have no effect and end as dead letters.
        effects: the ledger.
        dead_letters: ids found there.
        by_position: the checker knows messages by their place in a partition, so that one sent twice is two.
        may_be_late: ids that failed or waited in a group: later messages overtake them.
        explanations: decide which incident explains a repeat.
        wrong: ids with other headers, or another result, than they should have.
        published: what relays have published, as effects at their places in their order keys. It may be repeated, and
            must be in order.
    """
    poison, dead = set(poison), set(dead_letters)
    happened = {effect.id for effect in effects}
    known = set(perhaps_sent)
    confirmed = set(sent)
    return Findings(
        effects=len(effects),
        lost=sorted(confirmed - poison - happened - dead),
        repeats=_repeats(effects, by_position=by_position, explanations=explanations),
        out_of_order=[
            late.position
            for late in _out_of_order([*effects, *published], by_position=by_position)
            if late.id not in may_be_late
        ],
        dead=sorted(dead & poison),
        not_dead=sorted((confirmed & poison) - dead),
        strange=sorted((happened - known) | (happened & poison) | (dead - poison) | set(wrong)),
    )


def _repeats(effects: Sequence[Effect], *, by_position: bool, explanations: Explanations) -> list[Repeat]:
    by_key: Mapping[str, list[Effect]] = defaultdict(list)
    for effect in effects:
        by_key[effect.position if by_position else effect.id].append(effect)
    repeats = []
    for same in by_key.values():
        same.sort(key=lambda effect: effect.at)
        repeats += [Repeat(first, second, explanations.of(first, second)) for first, second in pairwise(same)]
    return repeats


def _out_of_order(effects: Sequence[Effect], *, by_position: bool) -> list[Effect]:
    """First effects that came after one of a later offset. Repeats are counted elsewhere."""
    seen: set[str] = set()
    furthest: dict[str, int] = {}
    late = []
    for effect in sorted(effects, key=lambda effect: effect.at):
        key = effect.position if by_position else effect.id
        if not effect.position or key in seen:
            continue
        seen.add(key)
        partition, offset = _place(effect.position)
        if offset < furthest.get(partition, -1):
            late.append(effect)
        furthest[partition] = max(furthest.get(partition, -1), offset)
    return late


def _place(position: str) -> tuple[str, int]:
    """The partition and the offset of a `Position` as text, whose leader epoch says nothing about the order."""
    topic, partition, offset, *_ = position.split("/")
    return f"{topic}/{partition}", int(offset)


def traces(
    journals: Iterable[Path], ledger: Iterable[Effect], suspects: Collection[str], began: float
) -> Mapping[str, list[str]]:
    """The latest lines about each of these messages, in the order of time.

    The suspects are ids of messages, or their positions; `began` is a time on the clock of the journals.
    """
    found: dict[str, list[tuple[float, str]]] = {suspect: [] for suspect in suspects}
    for line in _lines(journals, ledger) if found else ():
        for name in found.keys() & {line.get("id"), line.get("position")}:
            found[name].append((line["at"], _described(line, began)))
    return {suspect: [line for _, line in sorted(lines)[-_LATEST:]] for suspect, lines in found.items()}


def _lines(journals: Iterable[Path], ledger: Iterable[Effect]) -> Iterable[Mapping[str, Any]]:
    for effect in ledger:
        yield {"what": What.EFFECT.value, **asdict(effect)}
    for journal in journals:
        for text in journal.read_text().splitlines() if journal.exists() else ():
            line = json.loads(text)
            if line["what"] != What.EFFECT.value:  # it is in the ledger, too
                yield line


def _described(line: Mapping[str, Any], began: float) -> str:
    more = "  ".join(f"{name} {line[name]}" for name in _TOLD if line.get(name))
    return f"{line['at'] - began:7.2f} s  consumer {line['process']}  {line['what']}  {more}".rstrip()
