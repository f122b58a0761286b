"""`python -m tests.torture servers`: harm consumers, connections, broker and store; the promise is kept."""

from __future__ import annotations

import secrets
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console

from examples.demo.demonstration import demonstrate, own_folder
from idempotent.cli.configuration import url_in
from idempotent.cli.options import JsonOption
from idempotent.errors import ConfigurationError
from tests.torture import Servers, Settings, TortureReport, TortureRun
from tests.torture.examination.report import write_figures
from tests.torture.screen import introduce, show, watching

_LONGEST_SEED: Final = 1_000_000


def torture(
    broker: Annotated[
        str,
        typer.Option(
            metavar="URL",
            envvar="IDEMPOTENT_BROKER",
            show_default=False,
            callback=url_in,
            help="amqp://, stomp:// or kafka://. Only a queue or topic named torture_... is made, and removed again.",
        ),
    ],
    checker: Annotated[
        str,
        typer.Option(
            metavar="URL",
            show_default=False,
            callback=url_in,
            help="As for `idempotent run`, without a name: redis://, an SQL URL, or one after transactional+ or "
            "offsets+. Only tables and keys named torture_... are made, and removed again.",
        ),
    ],
    seconds: Annotated[
        float, typer.Option(min=1.0, metavar="S", help="How long harm is done; the end comes a little later.")
    ] = 60.0,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", show_default="a new one", help="Decides what is done, to whom and when."),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, max=32, metavar="N", help="Consuming processes.")] = 3,
    outbox: Annotated[
        bool,
        typer.Option(
            "--outbox",
            help="The handlers also send to a second consumer, through an outbox. Needs transactional+ and no SQLite.",
        ),
    ] = False,
    lease: Annotated[
        float, typer.Option(min=1.0, metavar="S", help="The lease of a leased checker; pauses are longer.")
    ] = 4.0,
    restart_broker: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            show_default="it is left alone",
            help="Kills and starts the broker, and ends once it answers. It must lose nothing that it confirmed.",
        ),
    ] = None,
    restart_store: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", show_default="it is left alone", help="The same, for the store."),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", show_default=False, help="Write the figures there, as Markdown and JSON."
        ),
    ] = None,
    as_json: JsonOption = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the journals and logs of the consumers.")
    ] = False,
) -> None:
    """Kill, pause and cut off consumers of a real broker and a real store, and examine the history.

    A producer sends messages, some of them twice. Several processes consume them behind the checker, are killed and
    paused at random and at every step, and lose their connections to broker and store, also after the server has
    acted and before its answer arrives. Every effect is written to a ledger. At the end nothing may be lost, and an
    effect may have happened again only where the checker's guarantee allows it and the history shows the reason.

    Use servers that nobody needs: they are kept busy.
    """
    settings = Settings(
        seed=secrets.randbelow(_LONGEST_SEED) if seed is None else seed,
        seconds=seconds,
        processes=processes,
        lease_s=lease,
        outbox=outbox,
    )
    servers = Servers(
        broker,
        checker,
        restart_broker=None if restart_broker is None else _command(restart_broker),
        restart_store=None if restart_store is None else _command(restart_store),
    )
    demonstrate(
        lambda console: over_servers(console, settings, servers, figures=figures, keep=keep), as_json=as_json
    )


def over_servers(
    console: Console, settings: Settings, servers: Servers, *, figures: Path | None = None, keep: bool = False
) -> TortureReport:
    """One run, shown; its figures are written into the folder `figures`."""
    with own_folder(console, keep=keep, name="torture", beside="") as folder:
        run = TortureRun(settings, servers, f"torture_{secrets.token_hex(4)}", folder)
        introduce(console, run)
        with watching(console, run) as tick:
            run.run(tick)
        report = run.report()
    show(console, report)
    if figures is not None:
        write_figures(figures, [report])
    return report


def _command(line: str) -> Callable[[float], object]:
    """A shell command, as `Servers` wants it. How long the server is down, it decides itself."""
    if not shlex.split(line):
        raise ConfigurationError("a command to restart a server must not be empty")

    def run(_: float) -> None:
        began = time.monotonic()
        # The user's own words, on the user's own command line.
        done = subprocess.run(line, shell=True, check=False, capture_output=True, text=True)
        if done.returncode:
            raise ConfigurationError(
                f"{line!r} ended with {done.returncode} after {time.monotonic() - began:.0f} s: {done.stderr.strip()}"
            )

    return run
