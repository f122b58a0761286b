"""`idempotent demo`: watch duplicates and crashes do no harm, on real data."""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from idempotent.cli.exits import ExitCode, epilog
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
        int, typer.Option(min=20, max=FLIGHTS, help="How many of the real flights; 2000 is quick.")
    ] = FLIGHTS,
    checker: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            show_default="transactional, on an SQLite file",
            help="transactional+mysql+pymysql://..., transactional+postgresql+psycopg://..., redis://... "
            "Only tables and keys named demo_... are made, and removed again.",
        ),
    ] = None,
    kills: Annotated[
        int | None,
        typer.Option(
            min=0, max=100, show_default="5; 2 for few flights", help="How often each consumer is killed."
        ),
    ] = None,
    duplicates: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="The share of messages that the producer sends twice.")
    ] = 0.05,
    seed: Annotated[
        int, typer.Option(help="Decides order, duplicates, kills and lost acknowledgements.")
    ] = 2013,
    as_json: Annotated[
        bool, typer.Option("--json", help="For machines: one JSON object, and no progress.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the files, tables and keys.")] = False,
) -> None:
    """Book real flights through duplicates and crashes, with a checker and without, and compare with the truth.

    A broker delivers the flights at least once. Two processes consume the same deliveries and are killed at the same
    points; one books behind a checker. At the end every row of both tables is compared with the data set.
    """
    console = Console(highlight=False, quiet=as_json)
    settings = Settings(
        flights=flights,
        kills=(2 if flights <= _SMALL else 5) if kills is None else kills,
        duplicates=duplicates,
        seed=seed,
    )
    folder = Path(tempfile.mkdtemp(prefix="idempotent-demo-"))
    stores = None
    try:
        stores = stores_for(checker, folder)
        stores.prepare()
        introduce(console, settings, stores)
        run = Run(settings, stores, folder)
        with progress(console, run.supervisors) as tick:
            run.deliver(tick)
        with console.status("Comparing every row with the data set"):
            report = run.compare()
        show(console, report)
        if as_json:
            typer.echo(json.dumps(report.as_json()))
    except KeyboardInterrupt:
        console.print("[yellow]Interrupted.[/yellow]")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    finally:
        if keep:
            console.print(f"    Kept: {folder}", soft_wrap=True)
        else:
            # The store may be what failed; that was reported already.
            with suppress(StoreError):
                if stores is not None:
                    stores.clean()
            shutil.rmtree(folder, ignore_errors=True)
    if not report.kept_promise:
        raise typer.Exit(ExitCode.ATTENTION)
