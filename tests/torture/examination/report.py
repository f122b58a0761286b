"""TortureReport: one run in figures; and the table of several."""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from idempotent.checkers.urls import scheme_of
from idempotent.claims import Guarantee
from tests.torture.examination.history import EXAMPLES, Findings
from tests.torture.faults.kinds import FaultGroup, FaultKind, Incident, Mishap
from tests.torture.settings import Settings


@dataclass(frozen=True, slots=True)
class TortureReport:
    """The figures of one run.

    Attributes:
        checker: the checker's URL. May hold a password.
        messages: that the broker confirmed, each counted once.
        duplicates: sent again on purpose.
        sent_again: sent again because the broker did not confirm them.
        settled: deliveries settled.
        skipped: duplicates among them.
        left: ids of messages that the broker still would deliver at the end.
        missing: faults that could not happen here, and why.
        seconds: the length of the run.
        traces: what was recorded about examples of broken rules.
    """

    settings: Settings
    broker: str
    checker: str
    guarantee: Guarantee
    messages: int
    duplicates: int
    sent_again: int
    settled: int
    skipped: int
    left: Sequence[str]
    incidents: tuple[Incident, ...]
    missing: Mapping[str, str]
    seconds: float
    findings: Findings
    traces: Mapping[str, Sequence[str]]

    @property
    def counts(self) -> Counter[str]:
        """How often each kind of incident happened."""
        return Counter(incident.kind.value for incident in self.incidents)

    def points(self, *kinds: FaultKind) -> Counter[str]:
        """How often each crash point was where it was killed or paused; by default, both."""
        return Counter(
            incident.point
            for incident in self.incidents
            if incident.point and (not kinds or incident.kind in kinds)
        )

    @property
    def groups(self) -> Counter[FaultGroup]:
        """How often faults of each group happened; unplanned incidents are not counted."""
        return Counter(
            incident.kind.group for incident in self.incidents if isinstance(incident.kind, FaultKind)
        )

    @property
    def ended(self) -> list[str]:
        """Consumers that ended unexpectedly, and the last lines of their logs."""
        return [
            f"{incident.process}: {incident.detail}"
            for incident in self.incidents
            if incident.kind is Mishap.ENDED
        ]

    @property
    def kept_promise(self) -> bool:
        """Nothing lost, unexplained, out of order, strange or left, and no consumer ended unexpectedly."""
        return self.findings.kept and not self.left and not self.ended and self.messages > 0

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        findings = self.findings
        return {
            "ok": self.kept_promise,
            "broker": self.broker,
            "guarantee": self.guarantee.value,
            **asdict(self.settings),
            "messages": self.messages,
            "duplicates": self.duplicates,
            "sent_again": self.sent_again,
            "settled": self.settled,
            "skipped": self.skipped,
            "effects": findings.effects,
            "lost": len(findings.lost),
            "repeated": len(findings.repeats),
            "explained": dict(findings.explained),
            "unexplained": len(findings.unexplained),
            "out_of_order": len(findings.out_of_order),
            "dead_lettered": len(findings.dead),
            "not_dead": len(findings.not_dead),
            "strange": len(findings.strange),
            "left": len(self.left),
            "ended": self.ended,
            "incidents": dict(self.counts),
            "points": dict(self.points()),
            "missing": dict(self.missing),
            "elapsed_s": round(self.seconds, 1),
            "examples": {
                "lost": findings.lost[:EXAMPLES],
                "unexplained": [
                    [asdict(repeat.first), asdict(repeat.second)]
                    for repeat in findings.unexplained[:EXAMPLES]
                ],
                "out_of_order": findings.out_of_order[:EXAMPLES],
                "strange": findings.strange[:EXAMPLES],
                "left": self.left[:EXAMPLES],
            },
            "traces": dict(self.traces),
        }


_COLUMNS: Final[Sequence[tuple[str, Callable[[TortureReport], int]]]] = (
    ("messages", lambda report: report.messages),
    ("deliveries", lambda report: report.settled),
    *((group.value, lambda report, group=group: report.groups[group]) for group in FaultGroup),
    ("lost", lambda report: len(report.findings.lost)),
    ("repeated", lambda report: len(report.findings.repeats)),
    ("unexplained", lambda report: len(report.findings.unexplained)),
)


def write_figures(folder: Path, reports: Sequence[TortureReport], command: str | None = None) -> None:
    """Write `figures.md` and `figures.jsonl`, a line for each report. By default `command` is that of this process."""
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
        outbox = " + outbox" * report.settings.outbox
        lines.append(f"| {report.broker} | {name_of(report.checker)}{outbox} | {cells} |")
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
