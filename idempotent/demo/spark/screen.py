"""The words, the bar and the table around a run of the Spark demo."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

from idempotent.demo.flights import FLIGHTS
from idempotent.demo.spark.report import SparkReport
from idempotent.demo.spark.run import SparkRun
from idempotent.demo.spark.settings import SparkSettings
from idempotent.demo.spark.stores import SparkStores
from idempotent.testing.stage.screen import should_be_zero

_LINE_EVERY_S: Final = 5.0


def introduce(console: Console, settings: SparkSettings, stores: SparkStores) -> None:
    """Announce what the run will do."""
    console.print(
        f"[bold]{settings.flights:,} of {FLIGHTS:,} real flights[/bold] (New York City, 2013) through "
        f"[bold]Spark[/bold], in {settings.months} runs of a month: files delivered twice, "
        f"{settings.duplicates:.0%} copied to other files, {settings.duplicates:.0%} delivered again months later, "
        f"and the driver killed {settings.kills} times with SIGKILL. Seed {settings.seed}.",
        soft_wrap=not console.is_terminal,  # whole words on a screen, whole lines in a file
    )
    console.print(Text(f"Ledger:  {stores.ledger.where}\n", "dim"), soft_wrap=True)


@contextmanager
def progress(console: Console, run: SparkRun) -> Iterator[Callable[[], None]]:
    """Show how far the runs are. Call the function that it gives often."""
    if not console.is_terminal:
        yield _Lines(console, run)
        return
    columns = (
        TextColumn("[bold]runs"),
        BarColumn(bar_width=None, complete_style="cyan", finished_style="green"),
        TaskProgressColumn(),
        TextColumn("{task.fields[at]:<17}"),
        TextColumn("[green]{task.fields[committed]} committed"),
        TextColumn("[red]{task.fields[kills]} kills"),
    )
    with Progress(*columns, console=console) as bars:
        task = bars.add_task("", total=run.steps, at=run.at, committed=0, kills=0)
        yield lambda: bars.update(
            task, completed=run.done, at=run.at, committed=run.committed, kills=run.kills
        )


class _Lines:
    """Progress as a line of text at each change, and every five seconds."""

    def __init__(self, console: Console, run: SparkRun) -> None:
        self._console = console
        self._run = run
        self._printed = (-1, -1)
        self._last = time.monotonic()

    def __call__(self) -> None:
        now = self._run.committed, self._run.kills
        if now == self._printed and time.monotonic() - self._last < _LINE_EVERY_S:
            return
        self._printed, self._last = now, time.monotonic()
        self._console.print(f"{self._run.at}, {now[0]} runs committed, {now[1]} kills", soft_wrap=True)


def show(console: Console, report: SparkReport) -> None:
    """Show the table and the verdict."""
    console.print(_table(report))
    for line in _verdict(report):
        console.print(line, soft_wrap=not console.is_terminal)


def _table(report: SparkReport) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for title in ("Parquet", "SQL table", "truth"):
        table.add_column(title, justify="right")
    delivered = report.delivered
    for name, number in (
        ("rows delivered", delivered.rows),
        ("in files", delivered.files),
        ("driver killed", report.kills),
    ):
        table.add_row(name, f"{number:,}")
    table.add_section()
    sums = report.files.booked, report.table.booked, report.truth
    for name, attribute in (
        ("flights published", "flights"),
        ("distance, miles", "distance"),
        ("arrival delay, minutes", "arr_delay"),
    ):
        table.add_row(name, *(f"{getattr(each, attribute):,}" for each in sums), style="bold")
    table.add_section()
    for name, attribute in (("published again", "repeated"), ("lost", "lost"), ("strange", "strange")):
        found = (should_be_zero(getattr(each, attribute)) for each in (report.files, report.table))
        table.add_row(name, *found, "0")
    return table


def _verdict(report: SparkReport) -> list[Text]:
    flights = report.truth.flights
    if report.kept_promise:
        verdict = f"Each of the {flights:,} flights is published exactly once, in both: equal to the truth, row by row."
        lines = [Text.assemble(("OK  ", "bold green"), verdict)]
    else:
        words = (
            f"{name}: {each.lost:,} lost, {each.repeated:,} repeated, {each.strange:,} strange, for example "
            f"{', '.join(each.examples) or 'none'}"
            for name, each in (("Parquet", report.files), ("table", report.table))
        )
        lines = [
            Text.assemble(("FAILED  ", "bold red"), "The output differs from the truth. ", "; ".join(words))
        ]
    naive = report.delivered.repeated_by_naive
    lines.append(
        Text(
            f"    dropDuplicates in each run, without a kill, would have published {naive:,} of them again.",
            "dim",
        )
    )
    lines.append(
        Text(f"    {report.seconds:.0f} s, the starts of {report.kills + 1} drivers included.", "dim")
    )
    return lines
