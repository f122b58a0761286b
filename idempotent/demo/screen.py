"""The words and the table around a run."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from idempotent.claims import Guarantee
from idempotent.demo.flights import FLIGHTS
from idempotent.demo.report import Report, VariantReport
from idempotent.demo.settings import Settings
from idempotent.demo.stores import Stores

_PROMISES: Final = {
    Guarantee.TRANSACTIONAL: "transactional: the booking and its key commit together, so each flight is booked once",
    Guarantee.LEASED: "leased: nothing is lost, and only what was in flight at a kill may be booked again",
    Guarantee.CLAIM_ONCE: "claim once: nothing is booked twice, and what was in flight at a kill may be lost",
}


def introduce(console: Console, settings: Settings, stores: Stores) -> None:
    """Say what is about to happen."""
    share = "" if settings.flights == FLIGHTS else f" of {FLIGHTS:,}"
    console.print(
        f"[bold]{settings.flights:,}{share} real flights[/bold] (New York City, 2013), delivered at least once: "
        f"reordered, {settings.duplicates:.0%} sent twice, "
        f"acknowledgements lost, and the consumer killed "
        f"{settings.kills} times with SIGKILL. Seed {settings.seed}.",
        soft_wrap=not console.is_terminal,  # whole words on a screen, whole lines in a file
    )
    checker_lines(console, stores)


def checker_lines(console: Console, stores: Stores) -> None:
    """Say which checker it is, and what it promises."""
    console.print(
        f"Checker: [bold]{stores.keys.checker_name}[/bold], {_PROMISES[stores.keys.guarantee]}.",
        soft_wrap=not console.is_terminal,
    )
    console.print(Text(f"         {stores.shown_url}\n", "dim"), soft_wrap=True)


def show(console: Console, report: Report) -> None:
    """Show the table and the verdict."""
    console.print(_table(report))
    for line in _verdict(report):
        console.print(line, soft_wrap=not console.is_terminal)


def _table(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for title in ("with the checker", "without a checker", "truth"):
        table.add_column(title, justify="right")
    first, second, truth = report.with_checker, report.without_checker, report.truth

    def row(name: str, *values: int | None, style: str = "") -> None:
        cells = ["" if value is None else f"{value:,}" for value in values]
        table.add_row(name, *cells, style=style)

    row("delivered", first.delivered, second.delivered)
    row("processed", first.processed, second.processed)
    row("duplicates skipped", first.duplicates, second.duplicates)
    row("in flight at a crash", first.unanswered, second.unanswered)
    if first.others or second.others:
        row("put off, or dead letters", first.others, second.others)
    row("crashes", first.crashes, second.crashes)
    table.add_section()
    booked, naive = first.comparison.booked, second.comparison.booked
    row("flights booked", booked.flights, naive.flights, truth.flights, style="bold")
    row("distance, miles", booked.distance, naive.distance, truth.distance, style="bold")
    row("arrival delay, minutes", booked.arr_delay, naive.arr_delay, truth.arr_delay, style="bold")
    table.add_section()
    for name, attribute in (("booked again", "repeated"), ("lost", "lost"), ("strange", "strange")):
        ours, theirs = (getattr(each.comparison, attribute) for each in (first, second))
        if attribute != "strange" or ours or theirs:
            table.add_row(name, count(ours), count(theirs), "0")
    return table


def count(number: int) -> Text:
    """A number that had better be 0."""
    return Text(f"{number:,}", style="red" if number else "green")


def _verdict(report: Report) -> list[Text]:
    compared, flights = report.with_checker.comparison, report.truth.flights
    lines = []
    if compared.equal:
        lines.append(
            Text.assemble(
                ("OK  ", "bold green"),
                f"With the checker each of the {flights:,} flights is booked exactly once: "
                "equal to the truth, row by row.",
            )
        )
    elif report.kept_promise:
        lines.append(
            Text.assemble(
                ("OK  ", "bold yellow"),
                f"With the checker nothing is lost. {compared.repeated:,} bookings are repeated, all of flights that "
                "were in flight at a kill,\n    which is what a leased checker promises. "
                "A transactional one repeats none.",
            )
        )
    else:
        lines.append(_failure(report.with_checker))
    unheard = compared.booked.flights - report.with_checker.processed
    if compared.equal and unheard:
        lines.append(
            Text(
                f"    {unheard:,} of them were booked just before a kill that lost the acknowledgement, came again, "
                "and were skipped."
            )
        )
    naive = report.without_checker.comparison
    lines.append(Text(f"    Without it {naive.repeated:,} bookings are repeated and {naive.lost:,} lost."))
    seconds = max(report.with_checker.seconds, report.without_checker.seconds)
    lines.append(
        Text(
            f"    {report.with_checker.delivered / report.with_checker.seconds:,.0f} deliveries a second "
            f"with the checker; everything delivered in {seconds:.0f} s.",
            "dim",
        )
    )
    return lines


def _failure(variant: VariantReport) -> Text:
    compared = variant.comparison
    return Text.assemble(
        ("FAILED  ", "bold red"),
        f"The bookings behind the checker differ from the truth: {compared.lost:,} lost, {compared.repeated:,} "
        f"repeated ({compared.unexplained:,} unexplained), {compared.strange:,} strange, {variant.dead:,} dead "
        f"letters. For example: {', '.join(compared.examples)}",
    )
