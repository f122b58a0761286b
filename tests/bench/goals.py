"""Target: a figure, and how much is enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tests.bench.figures import Figures

Measure = Callable[[Figures], float | None]


class Goal(StrEnum):
    """Which side of the number is the good one."""

    AT_MOST = "<="
    AT_LEAST = ">="


@dataclass(frozen=True, slots=True)
class Target:
    """One row.

    Attributes:
        what: is measured, against what.
        goal: the good side.
        number: of the target.
        unit: of both numbers.
        measure: finds the figure in what was measured; None: it was not.
        limit: finds what the same reaches by hand, against the same. Nobody who makes these statements gets past that,
            but end to end a Worker may, which receives and settles meanwhile.
    """

    what: str
    goal: Goal
    number: float
    unit: str
    measure: Measure
    limit: Measure = lambda _: None

    def score(self, figures: Figures) -> Score:
        """What the run says of it."""
        value = self.measure(figures)
        if value is None:
            return Score(self, None, None)
        passed = value <= self.number if self.goal is Goal.AT_MOST else value >= self.number
        return Score(self, value, passed, self.limit(figures))


@dataclass(frozen=True, slots=True)
class Score:
    """A target, and what became of it.

    Attributes:
        target: the row.
        value: what was measured; None: nothing.
        passed: whether that is enough; None: not measured.
        limit: see Target; None: none was measured.
    """

    target: Target
    value: float | None
    passed: bool | None
    limit: float | None = None

    @property
    def wanted(self) -> str:
        """The target, for people."""
        return f"{self.target.goal} {self.target.number:g} {self.target.unit}"

    @property
    def shown(self) -> str:
        """The figure, for people."""
        return "not measured" if self.value is None else f"{self.value:.2f} {self.target.unit}"

    @property
    def by_hand(self) -> str:
        """The limit, for people."""
        return "" if self.limit is None else f"{self.limit:.2f}"
