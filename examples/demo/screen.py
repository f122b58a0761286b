"""The words, the progress and the tables around a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn
from rich.text import Text

from examples.demo.flights import FLIGHTS
from examples.demo.report import LiveReport, Report, State, compared_rows
from examples.demo.schedule import Settings
from examples.demo.stage import screen
from examples.demo.stage.places import Place
from examples.demo.stage.screen import Row, verdict
from examples.demo.stores import Stores
from idempotent.claims import Guarantee

_WIDE: Final = 110
_PROMISES: Final = {
    Guarantee.TRANSACTIONAL: "transactional: the booking and its key commit together, so each flight is booked once",
    Guarantee.LEASED: "leased: nothing is lost, and only what was in flight at a kill may be booked again",
    Guarantee.CLAIM_ONCE: "claim once: nothing is booked twice, and what was in flight at a kill may be lost",
}


def progress(
    console: Console, watched: Mapping[str, Callable[[], State]]
) -> AbstractContextManager[Callable[[], None]]:
    """Show how far the consumers are. Call the function that it gives often."""
    began = time.monotonic()
    wide = console.width >= _WIDE
    columns = (
        "[bold]{task.description}",
        BarColumn(bar_width=None, complete_style="cyan", finished_style="green"),
        TaskProgressColumn(),
        "{task.completed:>7,.0f} delivered",
        "[cyan]{task.fields[speed]:>6,.0f}/s",
        f"[green]{{task.fields[skipped]:>6,}} {'duplicates skipped' if wide else 'skipped'}",
        "[red]{task.fields[crashes]:>2} crashes",
    )

    def bar(name: str) -> dict[str, Any]:
        total, completed, skipped, crashes, seconds = watched[name]()
        speed = completed / (seconds or time.monotonic() - began or 1.0)
        fields = {"speed": speed, "skipped": skipped, "crashes": crashes}
        return {"description": name, "total": total, "completed": completed, **fields}

    def lines() -> list[str]:
        return [
            "{description}: {completed:,} of {total:,} delivered, {speed:,.0f}/s, {skipped:,} duplicates skipped, "
            "{crashes} crashes".format(**bar(name))
            for name, state in watched.items()
            if not state().seconds
        ]

    return screen.progress(console, columns, [partial(bar, name) for name in watched], lines, expand=not wide)


def introduce(console: Console, settings: Settings, stores: Stores) -> None:
    """Say what is about to happen."""
    events = (
        f"reordered, {settings.duplicates:.0%} sent twice",
        f"acknowledgements lost, and the consumer killed {settings.kills} times with SIGKILL",
    )
    _introduce(console, settings, stores, ", delivered at least once", events)


def introduce_live(
    console: Console, settings: Settings, stores: Stores, place: Place, *, restarts: bool
) -> None:
    """Say what is about to happen over a real broker."""
    by_position = stores.keys.by_position
    events = [] if by_position else [f"{settings.duplicates:.0%} sent twice"]
    events.append(f"two consuming processes killed {settings.kills} times with SIGKILL")
    if restarts:
        events.append("the broker killed and started again in the middle")
    if by_position and place.has_offsets:
        events.append("then both killed and Kafka's own offsets set back to 0")
    _introduce(console, settings, stores, f" over [bold]{place.broker}[/bold]", events, place.shown_url)


def _introduce(
    console: Console, settings: Settings, stores: Stores, how: str, events: Sequence[str], broker: str = ""
) -> None:
    share = "" if settings.flights == FLIGHTS else f" of {FLIGHTS:,}"
    wide = not console.is_terminal  # whole words on a screen, whole lines in a file
    console.print(
        f"[bold]{settings.flights:,}{share} real flights[/bold] (New York City, 2013){how}: "
        f"{', '.join(events)}. Seed {settings.seed}.",
        soft_wrap=wide,
    )
    if broker:
        console.print(Text(f"Broker:  {broker}", "dim"), soft_wrap=True)
    keys = stores.keys
    console.print(f"Checker: [bold]{keys.checker_name}[/bold], {_PROMISES[keys.guarantee]}.", soft_wrap=wide)
    console.print(Text(f"         {stores.shown_url}\n", "dim"), soft_wrap=True)


def show(console: Console, report: Report) -> None:
    """Show the table and the verdict."""
    first, second = report.with_checker, report.without_checker
    deliveries = [
        Row("delivered", (first.delivered, second.delivered)),
        Row("processed", (first.processed, second.processed)),
        Row("duplicates skipped", (first.duplicates, second.duplicates)),
        Row("in flight at a crash", (first.unanswered, second.unanswered)),
        Row("put off, or dead letters", (first.others, second.others)),
        Row("crashes", (first.crashes, second.crashes)),
    ]
    if not (first.others or second.others):
        del deliveries[4]
    sections = [deliveries, *compared_rows([first.comparison, second.comparison])]
    table = screen.results(("with the checker", "without a checker", "truth"), sections)
    screen.show(console, table, _verdict(report))


def show_live(console: Console, report: LiveReport) -> None:
    """Show the table and the verdict of a run over a real broker."""
    counts = report.counts
    deliveries = [
        Row("sent, duplicates included", (counts.sent,)),
        Row("sent again after an error", (counts.sent_again,)),
        Row("delivered", (counts.delivered,)),
        Row("processed", (counts.processed,)),
        Row("duplicates skipped", (counts.duplicates,)),
        Row("consumers killed", (counts.kills,)),
        Row("broker killed", (counts.restarts,)),
        Row("Kafka's offsets set to 0", (counts.rewinds,)),
    ]
    if not counts.rewinds:
        del deliveries[7]
    if not counts.sent_again:
        del deliveries[1]
    sections = [deliveries, *compared_rows([report.comparison], left=counts.left)]
    screen.show(console, screen.results(("with the checker", "truth"), sections), _live_verdict(report))


def _verdict(report: Report) -> Iterator[Text]:
    variant, flights = report.with_checker, report.truth.flights
    compared = variant.comparison
    if compared.equal:
        yield verdict(
            "OK",
            "green",
            f"With the checker each of the {flights:,} flights is booked exactly once: "
            "equal to the truth, row by row.",
        )
    elif report.kept_promise:
        yield verdict(
            "OK",
            "yellow",
            f"With the checker nothing is lost. {compared.repeated:,} bookings are repeated, all of flights that "
            "were in flight at a kill,\n    which is what a leased checker promises. "
            "A transactional one repeats none.",
        )
    else:
        yield verdict(
            "FAILED",
            "red",
            f"The bookings behind the checker differ from the truth: {compared.lost:,} lost, {compared.repeated:,} "
            f"repeated ({compared.unexplained:,} unexplained), {compared.strange:,} strange, {variant.dead:,} dead "
            f"letters. For example: {', '.join(compared.examples)}",
        )
    unheard = compared.booked.flights - variant.processed
    if compared.equal and unheard:
        yield Text(
            f"    {unheard:,} of them were booked just before a kill that lost the acknowledgement, came again, "
            "and were skipped."
        )
    naive = report.without_checker.comparison
    yield Text(f"    Without it {naive.repeated:,} bookings are repeated and {naive.lost:,} lost.")
    seconds = max(variant.seconds, report.without_checker.seconds)
    yield Text(
        f"    {variant.delivered / variant.seconds:,.0f} deliveries a second "
        f"with the checker; everything delivered in {seconds:.0f} s.",
        "dim",
    )


def _live_verdict(report: LiveReport) -> Iterator[Text]:
    compared, counts = report.comparison, report.counts
    if not report.kept_promise:
        yield verdict(
            "FAILED",
            "red",
            f"The bookings differ from the truth: {compared.lost:,} lost, {compared.repeated:,} repeated, "
            f"{compared.strange:,} strange; {counts.left:,} messages left on the broker. "
            f"For example: {', '.join(compared.examples) or 'none'}",
        )
        return
    if compared.equal:
        yield verdict(
            "OK",
            "green",
            f"Each of the {report.truth.flights:,} flights is booked exactly once: equal to the truth, row by row. "
            "Nothing is left on the broker.",
        )
    else:
        yield verdict(
            "OK",
            "yellow",
            f"Nothing is lost. {compared.repeated:,} bookings are repeated, no more than met a kill, "
            "which is what a leased checker promises. A transactional one repeats none.",
        )
    yield Text(
        f"    {counts.delivered / report.seconds:,.0f} deliveries a second, {report.seconds:.0f} s in all, "
        "restarts included.",
        "dim",
    )
