"""Figure: what one contender did in one case; ratios are made round by round."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class What(StrEnum):
    """What the messages are."""

    FRESH = "fresh"
    DUPLICATES = "duplicates"


@dataclass(frozen=True, slots=True)
class Figure:
    """One contender in one case.

    Attributes:
        where: the store or the broker.
        who: the contender.
        what: fresh messages or duplicates.
        batch: messages a call.
        threads: that made calls at the same time.
        rounds_us: wall-clock microseconds a message, one figure a round.
        p50_us: median of a call, in microseconds.
        p99_us: 99th percentile of a call, in microseconds.
        cpu_us: processor time of this process a message, in microseconds; the server's is not in it.
    """

    where: str
    who: str
    what: What
    batch: int
    threads: int
    rounds_us: tuple[float, ...]
    p50_us: float
    p99_us: float
    cpu_us: float

    @property
    def message_us(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.rounds_us)

    @property
    def rate(self) -> float:
        """Messages a second."""
        return 1e6 / self.message_us


class Figures:
    """What was measured in one run.

    Attributes:
        all: the contenders' figures.
        worker_growth: of the memory of a worker over many messages, in percent: the last quarter of them against the
            second one.
    """

    def __init__(self, figures: Iterable[Figure] = ()) -> None:
        """Keep them."""
        self.all = list(figures)
        self.worker_growth: float | None = None

    def find(
        self, where: str, who: str, *, what: What = What.FRESH, batch: int = 1, threads: int = 1
    ) -> Figure | None:
        """The one figure of a case, None when it was not measured."""
        for figure in self.all:
            if (figure.where, figure.who, figure.what, figure.batch, figure.threads) == (
                where,
                who,
                what,
                batch,
                threads,
            ):
                return figure
        return None


def slower(figure: Figure | None, base: Figure | None) -> float | None:
    """How many times the base's time a message takes: the median of the rounds' ratios, as each round is one moment."""
    if figure is None or base is None:
        return None
    return statistics.median(
        ours / theirs for ours, theirs in zip(figure.rounds_us, base.rounds_us, strict=True)
    )


def faster(figure: Figure | None, base: Figure | None) -> float | None:
    """How many messages it does in the time the base does one."""
    return slower(base, figure)
