"""The words and the table around a run over a real broker."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from idempotent.demo.flights import FLIGHTS
from idempotent.demo.live.report import LiveReport
from idempotent.demo.screen import checker_lines, count
from idempotent.demo.settings import Settings
from idempotent.demo.stores import Stores
from idempotent.testing.stage.place import Place

_RESTARTED: Final = "the broker killed and started again in the middle"


def introduce(console: Console, settings: Settings, stores: Stores, place: Place, *, restarts: bool) -> None:
    """Say what is about to happen."""
    share = "" if settings.flights == FLIGHTS else f" of {FLIGHTS:,}"
    events = [f"two consuming processes killed {settings.kills} times with SIGKILL"]
    if not stores.keys.by_position:
        events.insert(0, f"{settings.duplicates:.0%} sent twice")
    if restarts:
        events.append(_RESTARTED)
    if stores.keys.by_position and place.can_rewind:
        events.append("then both killed and Kafka's own offsets set back to 0")
    console.print(
        f"[bold]{settings.flights:,}{share} real flights[/bold] (New York City, 2013) over "
        f"[bold]{place.broker}[/bold]: {', '.join(events)}. Seed {settings.seed}.",
        soft_wrap=not console.is_terminal,  # whole words on a screen, whole lines in a file
    )
    console.print(Text(f"Broker:  {place.shown_url}", "dim"), soft_wrap=True)
    checker_lines(console, stores)


def show(console: Console, report: LiveReport) -> None:
    """Show the table and the verdict."""
    console.print(_table(report))
    for line in _verdict(report):
        console.print(line, soft_wrap=not console.is_terminal)


def _table(report: LiveReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    table.add_column("with the checker", justify="right")
    table.add_column("truth", justify="right")

    def row(name: str, value: int, truth: int | None = None, style: str = "") -> None:
        table.add_row(name, f"{value:,}", "" if truth is None else f"{truth:,}", style=style)

    row("sent, duplicates included", report.sent)
    if report.sent_again:
        row("sent again after an error", report.sent_again)
    row("delivered", report.delivered)
    row("processed", report.processed)
    row("duplicates skipped", report.duplicates)
    row("consumers killed", report.kills)
    row("broker killed", report.restarts)
    if report.rewinds:
        row("Kafka's offsets set to 0", report.rewinds)
    table.add_section()
    booked, truth = report.comparison.booked, report.truth
    row("flights booked", booked.flights, truth.flights, "bold")
    row("distance, miles", booked.distance, truth.distance, "bold")
    row("arrival delay, minutes", booked.arr_delay, truth.arr_delay, "bold")
    table.add_section()
    compared = report.comparison
    for name, number in (
        ("booked again", compared.repeated),
        ("lost", compared.lost),
        ("strange", compared.strange),
        ("left on the broker", report.left),
    ):
        table.add_row(name, count(number), "0")
    return table


def _verdict(report: LiveReport) -> list[Text]:
    compared, flights = report.comparison, report.truth.flights
    if not report.kept_promise:
        return [
            Text.assemble(
                ("FAILED  ", "bold red"),
                f"The bookings differ from the truth: {compared.lost:,} lost, {compared.repeated:,} repeated, "
                f"{compared.strange:,} strange; {report.left:,} messages left on the broker. "
                f"For example: {', '.join(compared.examples) or 'none'}",
            )
        ]
    speed = Text(
        f"    {report.delivered / report.seconds:,.0f} deliveries a second, {report.seconds:.0f} s in all, "
        "restarts included.",
        "dim",
    )
    if compared.equal:
        said = (
            f"Each of the {flights:,} flights is booked exactly once: equal to the truth, row by row. "
            "Nothing is left on the broker."
        )
        return [Text.assemble(("OK  ", "bold green"), said), speed]
    said = (
        f"Nothing is lost. {compared.repeated:,} bookings are repeated, no more than met a kill, "
        "which is what a leased checker promises. A transactional one repeats none."
    )
    return [Text.assemble(("OK  ", "bold yellow"), said), speed]
