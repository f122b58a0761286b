"""Counts a worker's outcomes, for a progress line and a table."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

from rich.progress import Progress, TaskID

from idempotent.cli.options import LogLevel
from idempotent.cli.terminal.logs import LogFormat, log_to
from idempotent.cli.terminal.output import Unit, console, emit, plain, progress
from idempotent.cli.terminal.output import table as new_table
from idempotent.message import Message
from idempotent.outcomes import Outcome, Result

_COLOURS: Final = {
    Outcome.PROCESSED: "green",
    Outcome.DUPLICATE: "cyan",
    Outcome.IGNORED: "cyan",
    Outcome.FAILED: "yellow",
    Outcome.DEAD: "red",
    Outcome.REJECTED: "red",
}
_MEANINGS: Final = {
    Outcome.PROCESSED: "the handler ran, and its effect is recorded",
    Outcome.DUPLICATE: "processed before; the handler did not run",
    Outcome.IGNORED: "raised an exception that the consumer declares harmless",
    Outcome.FAILED: "tries that raised; the message was tried again",
    Outcome.DEAD: "attempts used up, or an exception that is not retried",
    Outcome.REJECTED: "no key, other content under the same key, or no consumer",
}
# Drawing every message would slow the worker down.
_REDRAW_S: Final = 0.1


class Tally:
    """Counts results and draws them. `position` returns further arguments for `Progress.update`."""

    def __init__(self, bar: Progress, task: TaskID, position: Callable[[], dict[str, Any]] = dict) -> None:
        self.outcomes: Final[Counter[Outcome]] = Counter()
        self.bar: Final = bar
        self._task = task
        self._position = position
        self._started = time.monotonic()
        self._drawn = 0.0

    def __call__(self, message: Message, result: Result) -> None:
        """Count one settled message."""
        del message
        self.outcomes[result.outcome] += 1
        now = time.monotonic()
        if now - self._drawn >= _REDRAW_S:
            self._drawn = now
            self.bar.update(self._task, description=self._line(), **self._position())

    @property
    def elapsed_s(self) -> float:
        """Seconds since the tally was created."""
        return time.monotonic() - self._started

    def _line(self) -> str:
        parts = [
            f"[{_COLOURS.get(outcome, 'white')}]{self.outcomes[outcome]:,} {outcome.value}[/]"
            for outcome in Outcome
            if self.outcomes[outcome]
        ]
        return "  ".join(parts)


@contextmanager
def watched(
    unit: Unit,
    task: str,
    log_level: LogLevel,
    *,
    quiet: bool,
    position: Callable[[], dict[str, Any]] = dict,
    log_format: LogFormat = LogFormat.TEXT,
    typed: Collection[str] = (),
) -> Iterator[Tally]:
    """A tally for `Worker(on_result=...)`, drawn as a progress bar with the log above it; `typed`: see `log_to`."""
    with progress(unit, quiet=quiet) as bar:
        log_to(bar.console, log_level.value, log_format, typed=typed)
        yield Tally(bar, bar.add_task(task, total=None), position)


def show_outcomes(
    tally: Tally, title: str, more: dict[str, tuple[int, str]], *, as_json: bool, **values: Any
) -> None:
    """Show the counts at the end: a table, or a line for machines, which get further `values`.

    `more` has further counts: a name, the number and its meaning.
    """
    if as_json:
        outcomes = {outcome.value: tally.outcomes[outcome] for outcome in Outcome}
        emit(**values, **outcomes, **{name: number for name, (number, _) in more.items()})
        return
    rows = new_table("Outcome", "Messages", "", right=("Messages",), title=plain(title))
    for outcome in Outcome:
        if count := tally.outcomes[outcome]:
            word = f"[{_COLOURS.get(outcome, 'white')}]{outcome.value}[/]"
            rows.add_row(word, f"{count:,}", f"[dim]{_MEANINGS.get(outcome, '')}[/dim]")
    for name, (count, meaning) in more.items():
        if count:
            rows.add_row(f"[red]{name}[/red]", f"{count:,}", f"[dim]{plain(meaning)}[/dim]")
    total = sum(tally.outcomes.values())
    rows.add_section()
    rate = f"in {tally.elapsed_s:.1f} s" + (f", {total / tally.elapsed_s:,.0f} a second" if total else "")
    rows.add_row("[bold]settled[/bold]", f"[bold]{total:,}[/bold]", f"[dim]{rate}[/dim]")
    console().print(rows)
