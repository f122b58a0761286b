"""TortureReport: one run in figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from idempotent.claims import Guarantee
from idempotent.torture.examination.history import EXAMPLES, Findings
from idempotent.torture.faults.incidents import Incident, Mishap
from idempotent.torture.faults.kinds import FaultGroup, FaultKind
from idempotent.torture.settings import Settings


@dataclass(frozen=True, slots=True)
class TortureReport:
    """The figures of one run.

    Attributes:
        settings: the settings, with the seed.
        broker: the broker's name.
        checker: the checker's URL. May hold a password.
        guarantee: what it promises.
        messages: that the broker confirmed, each counted once.
        duplicates: sent again on purpose.
        sent_again: sent again because the broker did not confirm them.
        settled: deliveries settled.
        skipped: duplicates among them.
        left: ids of messages that the broker still would deliver at the end.
        incidents: what happened.
        missing: faults that could not happen here, and why.
        seconds: the length of the run.
        findings: what the history says.
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
        """How often each crash point was where it happened.

        Args:
            kinds: killed or paused there; none: both.
        """
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
                "lost": list(findings.lost[:EXAMPLES]),
                "unexplained": [
                    [asdict(repeat.first), asdict(repeat.second)]
                    for repeat in findings.unexplained[:EXAMPLES]
                ],
                "out_of_order": list(findings.out_of_order[:EXAMPLES]),
                "strange": list(findings.strange[:EXAMPLES]),
                "left": list(self.left[:EXAMPLES]),
            },
            "traces": {suspect: list(lines) for suspect, lines in self.traces.items()},
        }
