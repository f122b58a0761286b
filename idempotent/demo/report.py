"""The result of a run, as JSON and as rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from idempotent.demo.broker import FlightBroker
from idempotent.demo.settings import Settings
from idempotent.demo.stores import Stores
from idempotent.demo.truth import Comparison, Totals
from idempotent.outcomes import Action, Outcome
from idempotent.testing.stage.screen import Row, should_be_zero


@dataclass(frozen=True, slots=True)
class VariantReport:
    """One consumer's run. `delivered` is the sum of the four that follow it.

    Attributes:
        delivered: messages handed over, redeliveries included.
        processed: answered PROCESSED: booked now.
        duplicates: answered DUPLICATE: booked before, skipped.
        unanswered: in the consumer's hands when it was killed.
        others: every other answer.
        dead: the other answers that ended as dead letters.
        crashes: kills of the consuming process.
        seconds: from start to end.
        comparison: its table against the truth.
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
        compared = values.pop("comparison")
        del compared["truth"]
        return {**values, "seconds": round(self.seconds, 1), **compared, "equal": self.comparison.equal}


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


def compared_rows(compared: Sequence[Comparison], left: int | None = None) -> Iterator[list[Row]]:
    """The sections of the table that compare bookings with the truth.

    Args:
        compared: a comparison for each column.
        left: messages left on the broker; None: not known.
    """
    totals = [*(each.booked for each in compared), compared[0].truth]
    yield [
        Row("flights booked", [each.flights for each in totals], "bold"),
        Row("distance, miles", [each.distance for each in totals], "bold"),
        Row("arrival delay, minutes", [each.arr_delay for each in totals], "bold"),
    ]
    found = {
        "booked again": [each.repeated for each in compared],
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
