"""The words, the bar and the table around a run of the Spark demo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn
from rich.text import Text

from examples.demo.flights import FLIGHTS
from examples.demo.report import compared_rows
from examples.demo.spark.run import SparkReport, SparkRun
from examples.demo.spark.schedule import SparkSettings
from examples.demo.spark.stores import SparkStores
from examples.demo.stage import screen
from examples.demo.stage.screen import Row, verdict


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


def progress(console: Console, run: SparkRun) -> AbstractContextManager[Callable[[], None]]:
    """Show how far the runs are. Call the function that it gives often."""
    columns = (
        "[bold]runs",
        BarColumn(bar_width=None, complete_style="cyan", finished_style="green"),
        TaskProgressColumn(),
        "{task.description:<17}",
        "[green]{task.fields[committed]} committed",
        "[red]{task.fields[kills]} kills",
    )

    def state() -> dict[str, object]:
        return {
            "description": f"{run.date} {run.step}",
            "total": run.steps,
            "completed": run.done,
            "committed": len(run.committed),
            "kills": run.killed_after.total(),
        }

    def line() -> list[str]:
        kills = run.killed_after.total()
        return [f"{run.date} {run.step}, {len(run.committed)} runs committed, {kills} kills"]

    return screen.progress(console, columns, [state], line)


def show(console: Console, report: SparkReport) -> None:
    """Show the table and the verdict."""
    delivered = [
        Row("rows delivered", (report.delivered.rows,)),
        Row("in files", (report.delivered.files,)),
        Row("driver killed", (report.kills,)),
    ]
    sections = [delivered, *compared_rows([report.files, report.table], "published")]
    screen.show(console, screen.results(("Parquet", "SQL table", "truth"), sections), _verdict(report))


def _verdict(report: SparkReport) -> Iterator[Text]:
    flights = report.truth.flights
    if report.kept_promise:
        words = f"Each of the {flights:,} flights is published exactly once, in both: equal to the truth, row by row."
        yield verdict("OK", "green", words)
    else:
        words = "; ".join(
            f"{name}: {each.lost:,} lost, {each.repeated:,} repeated, {each.strange:,} strange, for example "
            f"{', '.join(each.examples) or 'none'}"
            for name, each in (("Parquet", report.files), ("table", report.table))
        )
        yield verdict("FAILED", "red", "The output differs from the truth. ", words)
    naive = report.delivered.repeated_by_naive
    yield Text(
        f"    dropDuplicates in each run, without a kill, would have published {naive:,} of them again.\n"
        f"    {report.seconds:.0f} s, the starts of {report.kills + 1} drivers included.",
        "dim",
    )
