"""`idempotent demo`: watch duplicates and crashes do no harm, on real data."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from idempotent.cli.exits import ExitCode, epilog
from idempotent.cli.options import JsonOption
from idempotent.cli.output import emit
from idempotent.demo.flights import FLIGHTS
from idempotent.demo.job import Run
from idempotent.demo.progress import progress
from idempotent.demo.screen import introduce, show
from idempotent.demo.settings import Settings
from idempotent.demo.stores import stores_for
from idempotent.errors import StoreError

EPILOG: Final = epilog(
    "idempotent demo",
    "idempotent demo --flights 2000",
    "idempotent demo --checker transactional+postgresql+psycopg://user:password@host/db",
    "idempotent demo --checker redis://localhost",
)
_SMALL: Final = 20_000


def demo(
    flights: Annotated[
        int,
        typer.Option(min=20, max=FLIGHTS, metavar="N", help="How many of the real flights; 2000 is quick."),
    ] = FLIGHTS,
    checker: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            show_default="transactional, on SQLite",
            help="Another checker. Only tables and keys named demo_... are made in its store, and removed again.",
        ),
    ] = None,
    kills: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=100,
            metavar="N",
            show_default="5, or 2 for few flights",
            help="How often each consumer is killed.",
        ),
    ] = None,
    duplicates: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, metavar="SHARE", help="How many messages the producer sends twice."),
    ] = 0.05,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Decides order, duplicates, kills and lost acknowledgements.")
    ] = 2013,
    as_json: JsonOption = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the files, tables and keys.")] = False,
) -> None:
    """Book real flights through duplicates and crashes, with a checker and without, and compare with the truth.

    A broker delivers the flights at least once. Two processes consume the same deliveries and are killed at the same
    points; one books behind a checker. At the end every row of both tables is compared with the data set, and the
    command fails if the checker's table differs.
    """
    console = Console(highlight=False, quiet=as_json)
    few = flights <= _SMALL
    settings = Settings(flights, (2 if few else 5) if kills is None else kills, duplicates, seed)
    # Told to end, it removes what it made, as with Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _folder(console, keep=keep) as folder:
            stores = stores_for(checker, folder)
            stores.prepare()
            try:
                introduce(console, settings, stores)
                with console.status("Reading the flights"):
                    run = Run(settings, stores, folder)
                with progress(console, run.supervisors) as tick:
                    run.deliver(tick)
                with console.status("Comparing every row with the data set"):
                    report = run.compare()
            finally:
                if not keep:
                    # If the store is what failed, that is being reported already.
                    with suppress(StoreError):
                        stores.clean()
            show(console, report)
    except KeyboardInterrupt:
        console.print("[yellow]Interrupted.[/yellow]")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if as_json:
        emit(**report.as_json())
    if not report.kept_promise:
        raise typer.Exit(ExitCode.ATTENTION)


@contextmanager
def _folder(console: Console, *, keep: bool) -> Iterator[Path]:
    """A folder for the files, removed at the end unless they are to be kept."""
    folder = Path(tempfile.mkdtemp(prefix="idempotent-demo-"))
    try:
        yield folder
    finally:
        if keep:
            console.print(
                f"    Kept: {folder}, and what is named demo_... in the checker's store.", soft_wrap=True
            )
        else:
            shutil.rmtree(folder, ignore_errors=True)
