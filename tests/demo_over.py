"""`make demo BROKER=rabbitmq`: the demo over a broker that is started for it alone, and killed in the middle."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent.parent))

from idempotent.cli.demo import SHARE, over_broker
from idempotent.cli.exits import ExitCode
from idempotent.cli.output import emit
from idempotent.demo.flights import FLIGHTS
from idempotent.demo.settings import Settings
from idempotent.errors import IdempotentError
from tests.services import PrivateActiveMq, PrivateKafka, PrivateMariaDb, PrivateRabbitMq, PrivateServer

BROKERS: dict[str, type[PrivateServer]] = {
    "rabbitmq": PrivateRabbitMq,
    "activemq": PrivateActiveMq,
    "kafka": PrivateKafka,
}


def main(
    broker: str,
    flights: Annotated[int, typer.Option(min=20, max=FLIGHTS)] = SHARE,
    kills: int = 5,
    duplicates: float = 0.05,
    seed: int = 2013,
    checker: Annotated[
        str, typer.Option(help="transactional or offsets, on a MariaDB of its own; or a URL.")
    ] = "transactional",
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Start the servers, run the demo, remove them."""
    console = Console(highlight=False, quiet=as_json)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if broker not in BROKERS:
        sys.exit(f"BROKER={broker} is unknown; known: {', '.join(BROKERS)}")
    with ExitStack() as stack:
        try:
            server = started(stack, console, BROKERS[broker]())
            url = checker
            if "://" not in checker:
                url = f"{checker}+{started(stack, console, PrivateMariaDb()).url}"
            report = over_broker(
                console,
                Settings(flights, kills, duplicates, seed),
                server.url if "://" in server.url else f"{broker}://{server.url}",
                url,
                restart=lambda: (server.kill(), server.start()),
            )
        except KeyboardInterrupt:
            console.print("[yellow]Interrupted.[/yellow]")
            raise typer.Exit(ExitCode.INTERRUPTED) from None
    if as_json:
        emit(**report.as_json())
    if not report.kept_promise:
        raise typer.Exit(ExitCode.ATTENTION)


def started(stack: ExitStack, console: Console, server: PrivateServer) -> PrivateServer:
    """The server, running until the end."""
    missing = server.missing()
    if missing:
        sys.exit(f"{server.name} cannot be started here: {missing}")
    stack.callback(server.close)
    with console.status(f"Starting {server.name}"):
        server.start()
    return server


app = typer.Typer(pretty_exceptions_enable=False)
app.command()(main)

if __name__ == "__main__":
    try:
        app()
    except IdempotentError as error:
        sys.exit(f"{type(error).__name__}: {error}")
