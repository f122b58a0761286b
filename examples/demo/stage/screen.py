"""What every report shows: a table in sections, and lines below it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from rich import box
from rich.console import Console, RenderableType
from rich.progress import Progress, ProgressColumn
from rich.table import Table
from rich.text import Text

_EVERY_S: Final = 5.0


class Row(NamedTuple):
    """One row: its name, its cells, and the style of all of them."""

    name: str
    cells: Sequence[RenderableType | int | None]
    style: str = ""


def results(titles: Sequence[str], sections: Iterable[Iterable[Row]]) -> Table:
    """A table of numbers. `titles` are those of the columns without the first; if all are empty, it has no header."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(titles))
    table.add_column("")
    for title in titles:
        table.add_column(title, justify="right")
    for rows in sections:
        for row in rows:
            table.add_row(row.name, *map(_cell, row.cells), style=row.style)
        table.add_section()
    return table


class Lines:
    """Prints lines every few seconds; call it often."""

    def __init__(self, console: Console, lines: Callable[[], Iterable[Text | str]]) -> None:
        self._console = console
        self._lines = lines
        self._last = time.monotonic()

    def __call__(self) -> None:
        """Print, if it is time."""
        if time.monotonic() - self._last >= _EVERY_S:
            self._last = time.monotonic()
            for line in self._lines():
                self._console.print(line, soft_wrap=True)


@contextmanager
def progress(
    console: Console,
    columns: Sequence[str | ProgressColumn],
    states: Sequence[Callable[[], dict[str, Any]]],
    lines: Callable[[], Iterable[Text | str]],
    *,
    expand: bool = False,
) -> Iterator[Callable[[], None]]:
    """Show bars on a terminal, and lines elsewhere. Call the yielded function often.

    `states` has a function for each bar: it returns what `Progress.update` takes.
    """
    if not console.is_terminal:
        yield Lines(console, lines)
        for line in lines():
            console.print(line, soft_wrap=True)
        return
    with Progress(*columns, console=console, expand=expand) as bars:
        tasks = [(bars.add_task("", **state()), state) for state in states]

        def tick() -> None:
            for task, state in tasks:
                bars.update(task, **state())

        yield tick


def should_be_zero(number: int) -> Text:
    """A number in green if it is 0, otherwise in red."""
    return Text(f"{number:,}", style="red" if number else "green")


def verdict(word: str, style: str, *rest: str) -> Text:
    """OK or FAILED, and why."""
    return Text.assemble((f"{word}  ", f"bold {style}"), *rest)


def show(console: Console, table: Table, lines: Iterable[Text]) -> None:
    """Print them: whole words on a terminal, whole lines in a file."""
    console.print(table)
    for line in lines:
        console.print(line, soft_wrap=not console.is_terminal)


def _cell(value: RenderableType | int | None) -> RenderableType:
    return f"{value:,}" if isinstance(value, int) else value or ""
