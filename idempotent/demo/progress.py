"""Progress: bars on a terminal, a line every few seconds elsewhere, silence for machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from idempotent.testing.stage.screen import Lines

_WIDE: Final = 110


class State(NamedTuple):
    """How far a consumer, or a group of them, is.

    Attributes:
        expected: deliveries that will be, as far as is known.
        delivered: deliveries so far.
        skipped: duplicates among them.
        crashes: kills of consuming processes.
        seconds: how long it took; 0 until the end.
    """

    expected: int
    delivered: int
    skipped: int
    crashes: int
    seconds: float


class Watched(Protocol):
    """Work whose progress is shown."""

    @property
    def name(self) -> str:
        """For people."""

    def state(self) -> State:
        """How far it is now."""


@contextmanager
def progress(console: Console, watched: Sequence[Watched]) -> Iterator[Callable[[], None]]:
    """Show how far the consumers are. Call the yielded function often."""
    began = time.monotonic()
    if console.is_terminal:
        with _bars(console, watched, began) as tick:
            yield tick
    else:
        yield Lines(console, lambda: [_line(each, began) for each in watched if not each.state().seconds])


@contextmanager
def _bars(console: Console, watched: Sequence[Watched], began: float) -> Iterator[Callable[[], None]]:
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
    with Progress(*columns, console=console, expand=console.width < _WIDE) as bars:
        tasks = [(bars.add_task(each.name, speed=0.0, skipped=0, crashes=0), each) for each in watched]

        def tick() -> None:
            for task, each in tasks:
                state = each.state()
                bars.update(
                    task,
                    total=state.expected,
                    completed=state.delivered,
                    speed=_speed(state, began),
                    skipped=state.skipped,
                    crashes=state.crashes,
                )

        yield tick


def _line(each: Watched, began: float) -> str:
    state = each.state()
    return (
        f"{each.name}: {state.delivered:,} of {state.expected:,} delivered, {_speed(state, began):,.0f}/s, "
        f"{state.skipped:,} duplicates skipped, {state.crashes} crashes"
    )


def _speed(state: State, began: float) -> float:
    elapsed_s = state.seconds or time.monotonic() - began
    return state.delivered / elapsed_s if elapsed_s else 0.0
