"""Counts a worker's outcomes, for a progress line and a table."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from rich.progress import Progress, TaskID

from idempotent.cli.terminal.output import console, plain
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
    """Counts results and draws them.

    Args:
        bar: the progress bar.
        task: the task of the bar.
        position: further arguments for `Progress.update`: how far the worker is.
    """

    def __init__(self, bar: Progress, task: TaskID, position: Callable[[], dict[str, Any]] = dict) -> None:
        """Count nothing yet."""
        self.outcomes: Final[Counter[Outcome]] = Counter()
        self._bar = bar
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
            self._bar.update(self._task, description=self._line(), **self._position())

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


def show_outcomes(tally: Tally, *, title: str, more: dict[str, tuple[int, str]]) -> None:
    """The table at the end.

    Args:
        tally: the counts.
        title: the table's title.
        more: further lines: a name, its count and its meaning.
    """
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
