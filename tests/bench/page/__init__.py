"""The results of runs that are kept, and the tables of two pages that are written from them.

`make bench` leaves such results in build/bench/results.json. Those that docs/reference/figures.md shows are kept here;
docs/speed.md has a summary of the first of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tests.bench.bare import WHO as BY_HAND
from tests.bench.brokers import TRANSACTIONAL
from tests.bench.crowd.names import THREADS, WORKER, with_callers
from tests.bench.figures import Figure, Figures, What
from tests.bench.goals import Score
from tests.bench.machine import machine
from tests.project.house import ROOT

PAGE: Final = ROOT / "docs" / "reference" / "figures.md"
KEPT: Final = Path(__file__).with_name("results.json")
SUMMARY: Final = ROOT / "docs" / "speed.md"
MARKS: Final = {True: "pass", False: "FAIL", None: "-"}
_BEGIN: Final = "<!-- written by `python -m tests.bench.page` -->"
_END: Final = "<!-- end of what is written -->"
_SQL: Final = ("MariaDB", "PostgreSQL")
_LEASED: Final = [("RedisChecker", "Redis"), *(("SqlChecker", where) for where in _SQL)]
_IN_SESSION: Final = [
    (f"{TRANSACTIONAL}{how}", where) for how in ("", ", savepoints", ", batch=True") for where in _SQL
]

Results = dict[str, Any]


def results(figures: Figures, scores: Iterable[Score]) -> Results:
    """What is kept of a run: its day, its machine, the targets that it measured, and what each contender did."""
    return {
        "measured": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": machine(),
        "targets": [
            {
                "what": score.target.what,
                "wanted": score.wanted,
                "figure": score.shown,
                "by_hand": score.by_hand,
                "verdict": MARKS[score.passed],
            }
            for score in scores
            if score.passed is not None
        ],
        "figures": [_kept(figure, figures) for figure in figures.all if figure.what is What.FRESH],
    }


def _kept(figure: Figure, figures: Figures) -> Results:
    again = figures.find(
        figure.where, figure.who, what=What.DUPLICATES, batch=figure.batch, threads=figure.threads
    )
    return {
        "where": figure.where,
        "who": figure.who,
        "batch": figure.batch,
        "at_once": figure.threads,
        "rate": round(figure.rate),
        "p50_us": round(figure.p50_us, 1),
        "p99_us": round(figure.p99_us, 1),
        "cpu_us": round(figure.cpu_us, 1),
        "duplicates": round(again.rate) if again else 0,
    }


def tables(run: Results) -> Iterator[str]:
    """The lines of a run: its targets, and a table for each place. What was not measured, a zero, is left empty."""
    yield f"Measured on {run['measured']}, {run['machine']}."
    yield ""
    yield "| what | target | figure | the same by hand | |"
    yield "|---|---|---:|---:|---|"
    for target in run["targets"]:
        yield f"| {' | '.join(target.values())} |"
    for where in dict.fromkeys(figure["where"] for figure in run["figures"]):
        yield from ["", f"### {where}", ""]
        yield "| | batch | at once | messages/s | p50 of a call | p99 | CPU a message | duplicates/s |"
        yield "|---|---:|---:|---:|---:|---:|---:|---:|"
        for one in run["figures"]:
            if one["where"] == where:
                times = " | ".join(_time(one[name]) for name in ("p50_us", "p99_us", "cpu_us"))
                rates = f"{one['rate']:,}", times, f"{one['duplicates']:,}" if one["duplicates"] else ""
                yield f"| {one['who']} | {one['batch']} | {one['at_once']} | {' | '.join(rates)} |"


def _time(microseconds: float) -> str:
    if microseconds <= 0:
        return ""
    return f"{microseconds:.1f} us" if microseconds < 1000 else f"{microseconds / 1000:.1f} ms"


def costs(run: Results) -> Iterator[str]:
    """The lines of the summary: what each checker reaches one message at a time, in threads and in groups."""

    def rate(where: str, who: str, *, at_once: int = 1, batch: int = 1) -> str:
        case = (where, who, batch, at_once)
        return next((f"{one['rate']:,}" for one in run["figures"] if _case(one) == case), "")

    yield f"| messages/s | store | one at a time | by hand | {THREADS} threads of a worker | `batch_size` | |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for who, where in (*_LEASED, *_IN_SESSION):
        size = max((one["batch"] for one in run["figures"] if _case(one)[:2] == (where, who)), default=1)
        single = rate(where, who)
        by_hand = single and rate(where, f"{BY_HAND}, Session" if who == TRANSACTIONAL else BY_HAND)
        threads = rate(with_callers(where), f"{WORKER}, {who}", at_once=THREADS)
        name, _, how = who.partition(", ")
        cells = f"`{name}`{how and f', `{how}`'}", where, single, by_hand, threads, f"{size}"
        yield f"| {' | '.join(cells)} | {rate(where, who, batch=size)} |"


def _case(figure: Results) -> tuple[str, str, int, int]:
    return figure["where"], figure["who"], figure["batch"], figure["at_once"]


def written(page: str, lines: Iterable[str]) -> str:
    """The page, with these lines between its two marks."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return "\n".join([before + _BEGIN, *lines, _END + after])


def pages(runs: Sequence[Results]) -> dict[Path, str]:
    """What the two pages have to be, to show these runs."""
    all_tables = [line for run in runs for line in ("", f"## Run of {run['measured']}", "", *tables(run))]
    return {
        PAGE: written(PAGE.read_text(), [*all_tables, ""]),
        SUMMARY: written(SUMMARY.read_text(), costs(runs[0])),
    }
