"""Progress: two bars on a terminal, a line every few seconds elsewhere, silence for machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from idempotent.demo.supervisor import Supervisor
from idempotent.outcomes import Outcome

_LINE_EVERY_S: Final = 5.0
_WIDE: Final = 110


@contextmanager
def progress(console: Console, supervisors: Sequence[Supervisor]) -> Iterator[Callable[[], None]]:
    """Show how far the consumers are. The function it gives is to be called often."""
    if console.is_terminal:
        with _bars(console, supervisors) as tick:
            yield tick
    else:
        yield _Lines(console, supervisors)


@contextmanager
def _bars(console: Console, supervisors: Sequence[Supervisor]) -> Iterator[Callable[[], None]]:
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
            (bars.add_task(each.name, total=each.broker.expected, speed=0.0, skipped=0, crashes=0), each)
            for each in supervisors
        ]

        def tick() -> None:
            for task, each in tasks:
                bars.update(
                    task,
                    total=each.broker.expected,
                    completed=each.broker.delivered,
                    speed=_speed(each, began),
                    skipped=each.broker.outcomes[Outcome.DUPLICATE],
                    crashes=each.crashes,
                )

        yield tick


class _Lines:
    """The same in words."""

    def __init__(self, console: Console, supervisors: Sequence[Supervisor]) -> None:
        self._console = console
        self._supervisors = supervisors
        self._began = self._last = time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._last < _LINE_EVERY_S:
            return
        self._last = time.monotonic()
        for each in self._supervisors:
            if each.seconds:
                continue
            broker = each.broker
            self._console.print(
                f"{each.name}: {broker.delivered:,} of {broker.expected:,} delivered, "
                f"{_speed(each, self._began):,.0f}/s, {broker.outcomes[Outcome.DUPLICATE]:,} duplicates skipped, "
                f"{each.crashes} crashes",
                soft_wrap=True,
            )


def _speed(supervisor: Supervisor, began: float) -> float:
    elapsed_s = supervisor.seconds or time.monotonic() - began
    return supervisor.broker.delivered / elapsed_s if elapsed_s else 0.0
