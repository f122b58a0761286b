"""Output: tables and progress bars for people, JSON Lines for machines."""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from idempotent.cli.exits import ExitCode
from idempotent.errors import (
    AdapterError,
    IdempotentError,
    MissingExtraError,
    SchemaError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
    UnknownCheckerError,
    brief,
    mask,
)

# Rich assumes 80 columns for a pipe, which would wrap keys that grep should find.
_PIPE_WIDTH: Final = 200
_TITLES: Final = (
    (UnknownCheckerError, "Unknown checker"),
    (MissingExtraError, "Missing extra"),
    (StoreUnavailableError, "Store unreachable"),
    (StoreBusyError, "Store busy"),
    (SchemaError, "Table missing or different"),
    (StoreError, "Store failed"),
    (AdapterError, "Broker failed"),
    (IdempotentError, "Bad configuration or input"),
)
_TYPE: Final = " Type: "
# A terminal obeys these: they move the cursor, clear the screen, or answer a question.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def console(*, stderr: bool = False) -> Console:
    """A console on the current stdout or stderr."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, emoji=False)


def say(text: str) -> None:
    """Print a line for people, with rich markup."""
    console().print(text, soft_wrap=True)


def note(text: str) -> None:
    """Print a remark on stderr, with rich markup."""
    console(stderr=True).print(text, soft_wrap=True)


def emit(**values: Any) -> None:
    """Print a line of JSON for machines."""
    typer.echo(json.dumps(values, ensure_ascii=False, default=str))


def tell(text: str, *, as_json: bool, **values: Any) -> None:
    """Print one result: `values` for machines, otherwise `text` for people."""
    if as_json:
        emit(**values)
    else:
        say(text)


def table(*columns: str, right: tuple[str, ...] = (), title: str | None = None) -> Table:
    """An empty table in the house style."""
    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def plain(text: str) -> str:
    """Text from outside, escaped for rich markup, and without passwords and what a terminal would obey.

    At most 10,000 characters of it: Rich takes a quadratic time for backslashes.
    """
    return escape(_harmless(brief(text)))


def shown(text: str) -> str:
    """An id or a key; in quotes where blanks or invisible characters would make it look like another."""
    return plain(text if text.isprintable() and text == text.strip() else repr(text))


def _harmless(text: str) -> str:
    """The text with control characters, except tabs and line ends, as escape sequences."""
    return text if text.isprintable() else _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def count(number: int, thing: str) -> str:
    """`1 key`, `2 keys`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def show_error(error: IdempotentError, *, as_json: bool, debug: bool) -> None:
    """Say on stderr what went wrong and what to do; with `debug` also show the traceback."""
    message = mask(str(error))
    if debug:
        typer.echo(mask("".join(traceback.format_exception(error))), err=True)
    if as_json:
        typer.echo(
            json.dumps({"error": type(error).__name__, "message": message}, ensure_ascii=False), err=True
        )
        return
    title = next(words for kind, words in _TITLES if isinstance(error, kind))
    # The command to type stands below the panel on one line, to be copied.
    what, _, todo = _harmless(message).partition(_TYPE)
    err = console(stderr=True)
    body = Text(what.replace(". Check ", ".\nCheck "))
    panel = Panel(body, title=f"[bold]{title}", title_align="left", border_style="red", expand=False)
    err.print(panel)
    if isinstance(error, UnknownCheckerError):
        err.print(Text("  Or name one here: --checker NAME=URL", "dim"))
    if todo:
        command, _, more = todo.partition(" (")
        err.print(Text.assemble("  Type: ", (command, "bold cyan")), soft_wrap=True)
        if more:
            err.print(Text(f"  ({more}", "dim"), soft_wrap=True)


class Unit(Enum):
    """What a progress bar counts."""

    THINGS = "things"
    BYTES = "bytes"
    UNBOUNDED = "unbounded"
    """Things whose number is unknown."""


@contextmanager
def progress(unit: Unit, *, quiet: bool) -> Iterator[Progress]:
    """A progress bar on stderr; hidden in a pipe, and when `quiet`, for machines."""
    err = console(stderr=True)
    columns: tuple[ProgressColumn, ...] = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    match unit:
        case Unit.THINGS:
            columns = (*columns, MofNCompleteColumn())
        case Unit.BYTES:
            columns = (*columns, DownloadColumn())
        case Unit.UNBOUNDED:
            columns = (TimeElapsedColumn(),)
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        *columns,
        console=err,
        transient=True,
        disable=quiet or not err.is_terminal,
    ) as bar:
        yield bar


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
