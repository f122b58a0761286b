"""What a run came to, for people and for machines."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from idempotent.demo.lane import Lane
from idempotent.demo.settings import Settings
from idempotent.demo.stores import Stores
from idempotent.demo.truth import Comparison, Totals
from idempotent.outcomes import Action, Outcome


@dataclass(frozen=True, slots=True)
class VariantReport:
    """One consumer's run. `delivered` is the sum of the four that follow it.

    Attributes:
        delivered: messages handed over, redeliveries included.
        processed: answered PROCESSED: booked now.
        duplicates: answered DUPLICATE: booked before, skipped.
        unanswered: in the consumer's hands when it was killed.
        others: every other answer.
        dead: of the others, those that ended as dead letters.
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
    def of(cls, lane: Lane, comparison: Comparison) -> VariantReport:
        """The report of a consumer that has ended."""
        broker = lane.broker
        processed, duplicates = broker.outcomes[Outcome.PROCESSED], broker.outcomes[Outcome.DUPLICATE]
        dead = sum(
            count for outcome, count in broker.outcomes.items() if outcome.action is Action.DEAD_LETTER
        )
        return cls(
            delivered=broker.delivered,
            processed=processed,
            duplicates=duplicates,
            unanswered=broker.unanswered,
            others=broker.delivered - processed - duplicates - broker.unanswered,
            dead=dead,
            crashes=lane.crashes,
            seconds=lane.seconds,
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

    @property
    def leased(self) -> bool:
        """The checker's promise ends at a kill."""
        return not self.stores.keys.is_transactional

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        return {
            "ok": self.kept_promise,
            "equal": self.with_checker.comparison.equal,
            "checker": self.stores.keys.checker_name,
            "guarantee": self.stores.keys.guarantee.value,
            "url": self.stores.shown_url,
            **asdict(self.settings),
            "truth": asdict(self.truth),
            "with_checker": self.with_checker.as_json(),
            "without_checker": self.without_checker.as_json(),
        }
