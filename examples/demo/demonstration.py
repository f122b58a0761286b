"""The frame around demo commands: the program that has them, its exit code, its folder and its tables."""

from __future__ import annotations

import logging
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import typer
from rich.console import Console

from idempotent.cli.exits import ExitCode, epilog
from idempotent.cli.root import ExitsWithCode
from idempotent.cli.terminal.output import emit
from idempotent.errors import StoreError


class Preparable(Protocol):
    """The tables and keys of a demo."""

    def prepare(self) -> None:
        """Remove and create them."""

    def clean(self) -> None:
        """Remove them."""


class Shown(Protocol):
    """The result of a demo."""

    @property
    def kept_promise(self) -> bool:
        """Whether the checker kept its promise."""

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`."""


P = TypeVar("P", bound=Preparable)


def program(name: str, commands: Mapping[Callable[..., object], Sequence[str]]) -> typer.Typer:
    """A program whose commands end as those of `idempotent` do.

    Args:
        name: what is typed to start it.
        commands: for each function lines of its examples, which begin with the command's name.
    """
    app = typer.Typer(
        name=name,
        cls=ExitsWithCode,
        no_args_is_help=True,
        rich_markup_mode=None,
        # A traceback with local variables would show passwords.
        pretty_exceptions_show_locals=False,
    )
    for function, lines in commands.items():
        examples = (f"{name} {line}" for line in lines)
        app.command(lines[0].split()[0], epilog=epilog(*examples))(function)
    return app


def demonstrate(run: Callable[[Console], Shown], *, as_json: bool) -> None:
    """Run a demo that prints its own report, and end with its exit code."""
    console = Console(highlight=False, emoji=False, quiet=as_json)
    # What an adapter has to say about a broker that is away is no news here.
    logging.getLogger("idempotent").addHandler(logging.NullHandler())
    # SIGTERM, like Ctrl-C, lets the demo remove what it created.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        report = run(console)
    except KeyboardInterrupt:
        console.print("[yellow]Interrupted.[/yellow]")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if as_json:
        emit(**report.as_json())
    if not report.kept_promise:
        raise typer.Exit(ExitCode.ATTENTION)


@contextmanager
def own_folder(
    console: Console,
    *,
    keep: bool,
    name: str = "demo",
    beside: str = ", and what is named demo_... in the store",
) -> Iterator[Path]:
    """A folder for the files, removed at the end unless `keep` is set; then it says what was kept where."""
    folder = Path(tempfile.mkdtemp(prefix=f"idempotent-{name}-"))
    try:
        yield folder
    finally:
        if keep:
            console.print(f"    Kept: {folder}{beside}.", soft_wrap=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def prepared(stores: P, *, keep: bool) -> Iterator[P]:
    """Create tables and keys, and remove them at the end unless `keep` is set."""
    stores.prepare()
    try:
        yield stores
    finally:
        if not keep:
            # If the store failed, that error is already being reported.
            with suppress(StoreError):
                stores.clean()
