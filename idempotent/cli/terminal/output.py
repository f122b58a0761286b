"""Output: lines and plain tables for people, JSON Lines for machines, and the line that shows progress."""

from __future__ import annotations

import getpass
import json
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape

from idempotent.cli.exits import ExitCode
from idempotent.errors import (
    AdapterError,
    IdempotentError,
    MissingExtraError,
    RunError,
    SchemaError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
    UnknownCheckerError,
    UnknownRunError,
    brief,
    mask,
)
from idempotent.views.text import distinct, harmless

_TITLES: Final = (
    (UnknownCheckerError, "Unknown checker"),
    (MissingExtraError, "Missing extra"),
    (StoreUnavailableError, "Store unreachable"),
    (StoreBusyError, "Store busy"),
    (SchemaError, "Table missing or different"),
    (StoreError, "Store failed"),
    (AdapterError, "Broker failed"),
    (UnknownRunError, "Unknown run"),
    (RunError, "Left alone"),
    (IdempotentError, "Bad configuration or input"),
)
AS_JSON: Final = f"{__name__}.as_json"
"""Whether the command was typed with --json, in the `meta` of its context."""
_TYPE: Final = " Type: "
_SCREENFUL: Final = 100
# The width of a column is known when all of its rows are: a long list is printed as several tables.
_ROWS_AT_ONCE: Final = 1000


def console(*, stderr: bool = False) -> Console:
    """A console on the current stdout or stderr."""
    return Console(stderr=stderr, highlight=False, emoji=False)


def me() -> str:
    """Who types: the names of the user and of the machine."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        user = "someone"
    return f"{user}@{socket.gethostname()}"


def say(text: str) -> None:
    """Print a line for people, with rich markup."""
    console().print(text, soft_wrap=True)


def note(text: str) -> None:
    """Print a remark on stderr, with rich markup."""
    console(stderr=True).print(text, soft_wrap=True)


def emit(**values: Any) -> None:
    """Print a line of JSON for machines."""
    typer.echo(json.dumps(values, ensure_ascii=False, default=str))


def tell(text: str, *remarks: str, as_json: bool, **values: Any) -> None:
    """Print one result: `values` for machines, otherwise `text` for people; remarks, unless empty, go to stderr."""
    if as_json:
        emit(**values)
        return
    say(text)
    for remark in filter(None, remarks):
        note(remark)


def most(limit: int | None, *, as_json: bool) -> int | None:
    """How many rows a list has, of `--limit`: by default a screenful for people, and for machines all; None: all."""
    chosen = limit if limit is not None else (0 if as_json else _SCREENFUL)
    return chosen or None


def show_rows(rows: Iterable[Mapping[str, Any]], *, as_json: bool, otherwise: str) -> int:
    """Print rows: for machines a line of JSON each, for people a table, or `otherwise` if there are no rows.

    Returns how many people were shown.
    """
    if as_json:
        for row in rows:
            emit(**row)
        return 0
    number = show_table(rows)
    if not number:
        say(otherwise)
    return number


def show_table(rows: Iterable[Mapping[str, object]]) -> int:
    """Print rows for people, one a line below the names of the columns. Returns how many there were."""
    rest, number = iter(rows), 0
    while part := list(islice(rest, _ROWS_AT_ONCE)):
        number += len(part)
        names = [name.replace("_", " ") for name in part[0]]
        lines = [names, *([_cell(value) for value in row.values()] for row in part)]
        widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True))
            typer.echo("  ".join(padded).rstrip())
    return number


def show_record(values: Mapping[str, object]) -> None:
    """Print one thing for people: a line for each of its values, without those that are missing or empty."""
    for name, value in values.items():
        if cell := _cell(value):
            typer.echo(f"{name.replace('_', ' ')}: {cell}")


def _cell(value: object) -> str:
    """A value as people read it."""
    if value is None or isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, (int, float)):
        return f"{value:,}"
    return distinct(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def plain(text: str) -> str:
    """Text from outside, escaped for rich markup, and without passwords and what a terminal would obey.

    At most 10,000 characters of it: Rich takes a quadratic time for backslashes.
    """
    return escape(harmless(brief(text)))


def shown(text: str) -> str:
    """An id or a key, escaped for rich markup."""
    return escape(distinct(text))


def show_error(error: IdempotentError, *, as_json: bool, debug: bool) -> None:
    """Say on stderr what went wrong and what to do; with `debug` also show the traceback."""
    message = mask(str(error))
    if debug:
        typer.echo(mask("".join(traceback.format_exception(error))), err=True)
    if as_json:
        said = {"error": type(error).__name__, "message": message}
        typer.echo(json.dumps(said, ensure_ascii=False), err=True)
        return
    title = next(words for kind, words in _TITLES if isinstance(error, kind))
    what, typed, todo = harmless(message).partition(_TYPE)
    note(f"[bold red]{title}:[/bold red] {escape(what)}")
    if isinstance(error, UnknownCheckerError):
        note("Or name one here: --checker NAME=URL")
    if typed:
        # The command stands on a line of its own, to be copied.
        command, bracket, more = todo.partition(" (")
        note(f"  Type: [bold cyan]{escape(command)}[/bold cyan]")
        if bracket:
            note(f"  ({escape(more)}")


@contextmanager
def progress(what: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is done, for a terminal alone, and the function that changes its text.

    The line is removed at the end. With `quiet`, for machines, no line is shown.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with console(stderr=True).status(what) as status:
        yield lambda text: status.update(escape(text))


def confirm(question: str, *, yes: bool) -> None:
    """Continue only if the user agrees, or gave `--yes`. Raises typer.Exit: the user did not agree."""
    if yes:
        return
    try:
        # On stderr: stdout is for the result.
        agreed = typer.confirm(question, err=True)
    except typer.Abort:
        note("\n[yellow]No answer:[/yellow] nothing was changed. --yes skips the question.")
        raise typer.Exit(ExitCode.USAGE) from None
    if not agreed:
        note("Nothing was changed.")
        raise typer.Exit(ExitCode.ATTENTION)
