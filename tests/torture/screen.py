"""The screen: counts and the latest incidents during a run, and the table at the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from examples.demo.stage import screen
from examples.demo.stage.screen import Row
from idempotent.claims import Guarantee
from idempotent.errors import mask
from idempotent.outcomes import Outcome
from tests.torture import TortureReport, TortureRun
from tests.torture.faults.kinds import FaultGroup, FaultKind, Incident

_LATEST: Final = 8
_COUNTED: Final = (FaultGroup.KILL, FaultGroup.PAUSE, FaultGroup.CUT, FaultGroup.RESTART)
_REFRESH_S: Final = 0.25
_PROMISES: Final = {
    Guarantee.TRANSACTIONAL: "each effect happens once, whatever fails",
    Guarantee.LEASED: "nothing is lost; an effect happens again only after a kill, a pause or an outage of about a "
    "lease before its completion, or when the store lost keys",
}


def introduce(console: Console, run: TortureRun) -> None:
    """Say what is about to happen, and which faults cannot."""
    settings = run.settings
    wide = not console.is_terminal
    console.print(
        f"[bold]{settings.processes} consumers[/bold] of [bold]{run.broker}[/bold] are tortured for "
        f"[bold]{settings.seconds:g} s[/bold], {len(run.faults)} times. Seed {settings.seed}.",
        soft_wrap=wide,
    )
    if settings.outbox:
        console.print(
            Text("Outbox:  they also send, a process relays, and two more consumers receive", "dim")
        )
    console.print(Text(f"Checker: {mask(run.store.url)}", "dim"), soft_wrap=True)
    console.print(Text(f"Promise: {_PROMISES[run.store.guarantee]}", "dim"), soft_wrap=wide)
    for kind, reason in run.feasible.missing.items():
        console.print(Text(f"Not done: {kind.value}: {reason}", "dim"), soft_wrap=wide)


@contextmanager
def watching(console: Console, run: TortureRun) -> Iterator[Callable[[], None]]:
    """Show how far it is. Call the yielded function often."""
    if not console.is_terminal:
        yield screen.Lines(console, lambda: [_counts(run)])
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        last = 0.0

        def tick() -> None:
            nonlocal last
            if time.monotonic() - last >= _REFRESH_S:
                last = time.monotonic()
                live.update(_picture(run, console.width), refresh=True)

        yield tick


def show(console: Console, report: TortureReport) -> None:
    """Show the table and the verdict."""
    table = screen.results(("", ""), _sections(report))
    table.columns[-1].justify, table.columns[-1].style = "left", "dim"
    screen.show(console, table, _verdict(report))


def _picture(run: TortureRun, width: int) -> Group:
    total = run.settings.seconds
    bar = ProgressBar(total=total, completed=min(run.elapsed_s, total), width=min(width, 60))
    latest = [
        Text(f"  {incident.at - run.began:7.1f} s  {_described(incident)}", _style(incident), no_wrap=True)
        for incident in run.incidents[-_LATEST:]
    ]
    return Group(bar, _counts(run), *latest)


def _counts(run: TortureRun) -> Text:
    kinds = [incident.kind for incident in run.incidents]
    groups = Counter(kind.group for kind in kinds if isinstance(kind, FaultKind))
    counts = ", ".join(f"{groups[group]} {group.value}" for group in _COUNTED)
    return Text(
        f"{run.elapsed_s:.0f} s: {run.traffic.begun:,} messages, {run.finished:,} done, "
        f"{run.record.outcomes[Outcome.DUPLICATE.value]:,} duplicates skipped; {counts}"
    )


def _described(incident: Incident) -> str:
    whose = f"consumer {incident.process}" if incident.process else ""
    where = f"at {incident.point}" if incident.point else ""
    lasted = f"{incident.lasted_s:.1f} s" if incident.lasted_s >= 0.1 else ""
    words = (incident.kind.value, whose, where, lasted, incident.detail[:60])
    return "  ".join(word for word in words if word)


def _style(incident: Incident) -> str:
    group = getattr(incident.kind, "group", FaultGroup.OTHER)
    return {FaultGroup.KILL: "red", FaultGroup.RESTART: "red", FaultGroup.PAUSE: "yellow"}.get(group, "cyan")


def _sections(report: TortureReport) -> Iterator[list[Row]]:
    findings = report.findings
    yield [
        Row("messages", (report.messages, "that the broker confirmed")),
        Row("sent twice on purpose", (report.duplicates,)),
        Row("sent again after an error", (report.sent_again,)),
        Row("deliveries settled", (report.settled,)),
        Row("duplicates skipped", (report.skipped,)),
    ]
    at_points = {
        kind.value: report.points(kind) for kind in (FaultKind.KILL_AT_POINT, FaultKind.PAUSE_AT_POINT)
    }
    yield [
        Row(kind, (count, ", ".join(sorted(at_points.get(kind, ())))))
        for kind, count in sorted(report.counts.items())
    ]
    explained = ", ".join(f"{kind} {count}" for kind, count in findings.explained.items())
    yield [
        Row("effects", (findings.effects,), "bold"),
        Row("dead letters, as they should be", (len(findings.dead),)),
        Row("repeated, explained", (findings.explained.total(), explained)),
    ]
    yield [Row(name, (value,), "bold red" if value else "bold green") for name, value in _faults(report)]


def _faults(report: TortureReport) -> list[tuple[str, int]]:
    findings = report.findings
    return [
        ("lost", len(findings.lost)),
        ("repeated, unexplained", len(findings.unexplained)),
        ("out of order in a partition, or order key", len(findings.out_of_order)),
        ("no dead letter", len(findings.not_dead)),
        ("strange", len(findings.strange)),
        ("left on the broker", len(report.left)),
        ("consumers ended by themselves", len(report.ended)),
    ]


def _verdict(report: TortureReport) -> list[Text]:
    seed = f"Seed {report.settings.seed}, {report.seconds:.0f} s in all."
    if report.kept_promise:
        return [
            screen.verdict("OK", "green", "Nothing lost, nothing unexplained: the promise was kept. ", seed)
        ]
    broken = [f"{name}: {value:,}" for name, value in _faults(report) if value] or ["no message was sent"]
    lines = [screen.verdict("FAILED", "red", "; ".join(broken), ". ", seed)]
    repeats = [
        f"{repeat.first.id} by consumer {repeat.first.process}, then {repeat.second.process}, "
        f"{repeat.second.at - repeat.first.at:.1f} s later"
        for repeat in report.findings.unexplained[:3]
    ]
    lines += [Text(f"        {mask(line)}", "red") for line in (*repeats, *report.ended[:3])]
    for suspect, trace in report.traces.items():
        lines.append(Text(f"        {suspect}" + ":" * bool(trace), "red"))
        lines += [Text(f"        {mask(line)}", "dim") for line in trace]
    return lines
