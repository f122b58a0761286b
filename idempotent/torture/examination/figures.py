"""The figures of runs: one Markdown table with the date and the command, and JSON Lines."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from idempotent.checkers.urls import scheme_of
from idempotent.torture.examination.report import TortureReport
from idempotent.torture.faults.kinds import FaultGroup

_COLUMNS: Final[Sequence[tuple[str, Callable[[TortureReport], int]]]] = (
    ("messages", lambda report: report.messages),
    ("deliveries", lambda report: report.settled),
    *((group.value, lambda report, group=group: report.groups[group]) for group in FaultGroup),
    ("lost", lambda report: len(report.findings.lost)),
    ("repeated", lambda report: len(report.findings.repeats)),
    ("unexplained", lambda report: len(report.findings.unexplained)),
)


def write_figures(folder: Path, reports: Sequence[TortureReport], command: str | None = None) -> None:
    """Write `figures.md` and `figures.jsonl`.

    Args:
        folder: created if it does not exist.
        reports: one line each.
        command: the command line; None: that of this process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "figures.md").write_text(markdown(reports, command or _typed()))
    (folder / "figures.jsonl").write_text("".join(f"{json.dumps(report.as_json())}\n" for report in reports))


def markdown(reports: Sequence[TortureReport], command: str) -> str:
    """The table, with the date and the command above it."""
    names = [name for name, _ in _COLUMNS]
    rows = [[count(report) for _, count in _COLUMNS] for report in reports]
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, `{command}`, seed {', '.join(_seeds(reports))}:",
        "",
        f"| broker | checker | {' | '.join(names)} |",
        f"|---|---|{'---:|' * len(names)}",
    ]
    for report, row in zip(reports, rows, strict=True):
        cells = " | ".join(f"{value:,}" for value in row)
        lines.append(f"| {report.broker} | {name_of(report.checker)} | {cells} |")
    if len(rows) > 1:
        sums = " | ".join(f"**{sum(column):,}**" for column in zip(*rows, strict=True))
        lines.append(f"| **all** | | {sums} |")
    return "\n".join([*lines, ""])


def name_of(checker_url: str) -> str:
    """The checker as the tables name it: its kind and its database, without any address."""
    scheme = scheme_of(checker_url)
    kind = scheme.removed.rstrip("+") or scheme.guarantee.value
    database = scheme.store_url(checker_url)
    return f"{kind}, {database.partition(':')[0].partition('+')[0]}"


def _seeds(reports: Sequence[TortureReport]) -> list[str]:
    return list(dict.fromkeys(str(report.settings.seed) for report in reports))


def _typed() -> str:
    # Without the arguments: a URL may hold a password.
    return shlex.join([Path(sys.argv[0]).name, *(word for word in sys.argv[1:2] if "://" not in word)])
