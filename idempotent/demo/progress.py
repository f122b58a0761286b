"""Progress: two bars on a terminal, a line every few seconds elsewhere, silence for machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

_LINE_EVERY_S: Final = 5.0
_WIDE: Final = 110


class Watched(Protocol):
    """What is shown of something under way."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def expected(self) -> int:
        """Deliveries that will be, as far as is known."""

    @property
    def delivered(self) -> int:
        """Deliveries so far."""

    @property
    def skipped(self) -> int:
        """Duplicates among them."""

    @property
    def crashes(self) -> int:
        """Kills of the consumers."""

    @property
    def seconds(self) -> float:
        """How long it took; 0 while it goes on."""


@contextmanager
def progress(console: Console, watched: Sequence[Watched]) -> Iterator[Callable[[], None]]:
    """Show how far the consumers are. The function it gives is to be called often."""
    if console.is_terminal:
        with _bars(console, watched) as tick:
            yield tick
    else:
        yield _Lines(console, watched)


@contextmanager
def _bars(console: Console, watched: Sequence[Watched]) -> Iterator[Callable[[], None]]:
    skipped = "duplicates skipped" if console.width >= _WIDE else "skipped"
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=None, complete_style="cyan", finished_style="green"),
        TaskProgressColumn(),
        TextColumn("{task.completed:>7,.0f} delivered"),
        TextColumn("[cyan]{task.fields[speed]:>6,.0f}/s"),
        TextColumn(f"[green]{{task.fields[skipped]:>6,}} {skipped}"),
        TextColumn("[red]{task.fields[crashes]:>2} crashes"),
    )
    began = time.monotonic()
    with Progress(*columns, console=console, expand=console.width < _WIDE) as bars:
        tasks = [
            (bars.add_task(each.name, total=each.expected, speed=0.0, skipped=0, crashes=0), each)
            for each in watched
        ]

        def tick() -> None:
            for task, each in tasks:
                bars.update(
                    task,
                    total=each.expected,
                    completed=each.delivered,
                    speed=_speed(each, began),
                    skipped=each.skipped,
                    crashes=each.crashes,
                )

        yield tick


class _Lines:
    """The same in words."""

    def __init__(self, console: Console, watched: Sequence[Watched]) -> None:
        self._console = console
        self._watched = watched
        self._began = self._last = time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._last < _LINE_EVERY_S:
            return
        self._last = time.monotonic()
        for each in self._watched:
            if each.seconds:
                continue
            self._console.print(
                f"{each.name}: {each.delivered:,} of {each.expected:,} delivered, "
                f"{_speed(each, self._began):,.0f}/s, {each.skipped:,} duplicates skipped, "
                f"{each.crashes} crashes",
                soft_wrap=True,
            )


def _speed(each: Watched, began: float) -> float:
    elapsed_s = each.seconds or time.monotonic() - began
    return each.delivered / elapsed_s if elapsed_s else 0.0
