"""The results of a run over the simulated broker and over a real one, as JSON and as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from examples.demo.broker import FlightBroker
from examples.demo.schedule import Settings
from examples.demo.stage.places import Place
from examples.demo.stage.screen import Row, should_be_zero
from examples.demo.stores import Stores
from examples.demo.truth import Comparison, Totals
from idempotent.outcomes import Action, Outcome


class State(NamedTuple):
    """How far a consumer, or a group of them, is. `seconds` is 0 until the end."""

    expected: int
    delivered: int
    skipped: int
    crashes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class VariantReport:
    """One consumer's run. `delivered` is the sum of the four that follow it.

    Attributes:
        unanswered: in the consumer's hands when it was killed.
        others: neither PROCESSED nor DUPLICATE.
        dead: the others that ended as dead letters.
    """

    delivered: int
    processed: int
    duplicates: int
    unanswered: int
    others: int
    dead: int
    crashes: int
    seconds: float
    comparison: Comparison

    @classmethod
    def of(cls, broker: FlightBroker, crashes: int, seconds: float, comparison: Comparison) -> VariantReport:
        """The report of a consumer that has finished."""
        outcomes = broker.outcomes
        processed, duplicates = outcomes[Outcome.PROCESSED], outcomes[Outcome.DUPLICATE]
        return cls(
            delivered=broker.delivered,
            processed=processed,
            duplicates=duplicates,
            unanswered=broker.unanswered,
            others=broker.delivered - processed - duplicates - broker.unanswered,
            dead=sum(count for outcome, count in outcomes.items() if outcome.action is Action.DEAD_LETTER),
            crashes=crashes,
            seconds=seconds,
            comparison=comparison,
        )

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        values = asdict(self)
        del values["comparison"]
        return {**values, "seconds": round(self.seconds, 1), **self.comparison.as_json()}


@dataclass(frozen=True, slots=True)
class Report:
    """Both runs."""

    settings: Settings
    stores: Stores
    with_checker: VariantReport
    without_checker: VariantReport

    @property
    def truth(self) -> Totals:
        """The sums over the data set."""
        return self.with_checker.comparison.truth

    @property
    def kept_promise(self) -> bool:
        """The checker did what it promises: a leased one may repeat what was in flight at a kill."""
        return self.with_checker.comparison.as_promised

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        return {
            "ok": self.kept_promise,
            "equal": self.with_checker.comparison.equal,
            **described(self.stores, self.settings),
            "truth": asdict(self.truth),
            "with_checker": self.with_checker.as_json(),
            "without_checker": self.without_checker.as_json(),
        }


def described(stores: Stores, settings: Settings) -> dict[str, Any]:
    """What was run, for `json.dumps`."""
    return {
        "checker": stores.keys.checker_name,
        "guarantee": stores.keys.guarantee.value,
        "url": stores.shown_url,
        **asdict(settings),
    }


def compared_rows(
    compared: Sequence[Comparison], done: str = "booked", left: int | None = None
) -> Iterator[list[Row]]:
    """The sections of the table that compare bookings with the truth, in a column for each comparison.

    `done` is what was done with the flights; `left`, if known, the number of messages left on the broker.
    """
    totals = [*(each.booked for each in compared), compared[0].truth]
    yield [
        Row(f"flights {done}", [each.flights for each in totals], "bold"),
        Row("distance, miles", [each.distance for each in totals], "bold"),
        Row("arrival delay, minutes", [each.arr_delay for each in totals], "bold"),
    ]
    found = {
        f"{done} again": [each.repeated for each in compared],
        "lost": [each.lost for each in compared],
        "strange": [each.strange for each in compared],
    }
    if left is not None:
        found["left on the broker"] = [left]
    yield [
        Row(name, [*map(should_be_zero, numbers), "0"])
        for name, numbers in found.items()
        if name != "strange" or any(numbers) or left is not None
    ]


@dataclass(slots=True)
class Counts:
    """The numbers of one run.

    Attributes:
        delivered: settled deliveries that the consumers reported: the last ones of a killed consumer are missing.
        left: what the broker still holds at the end.
        kills: of consuming processes.
        restarts: of the broker, by SIGKILL.
        rewinds: how often the broker's offsets were set back to 0.
    """

    sent: int
    sent_again: int = 0
    delivered: int = 0
    processed: int = 0
    duplicates: int = 0
    left: int = 0
    kills: int = 0
    restarts: int = 0
    rewinds: int = 0


@dataclass(frozen=True, slots=True)
class LiveReport:
    """One run: what was sent and settled, and the bookings against the truth."""

    settings: Settings
    stores: Stores
    place: Place
    counts: Counts
    seconds: float
    comparison: Comparison

    @property
    def truth(self) -> Totals:
        """The sums over the data set."""
        return self.comparison.truth

    @property
    def kept_promise(self) -> bool:
        """Nothing lost, strange or left. A leased checker may repeat the batch that met a kill, and no more."""
        compared, counts = self.comparison, self.counts
        repeats = 0 if self.stores.keys.is_transactional else counts.kills * self.settings.batch_size
        return not (compared.lost or compared.strange or counts.left) and compared.repeated <= repeats

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        return {
            "ok": self.kept_promise,
            "equal": self.comparison.equal,
            **described(self.stores, self.settings),
            "broker": self.place.broker,
            "broker_url": self.place.shown_url,
            **asdict(self.counts),
            "seconds": round(self.seconds, 1),
            **asdict(self.comparison),
        }
