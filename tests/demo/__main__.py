"""`make demo BROKER=rabbitmq`: the demo over a broker that is started for it alone, and killed in the middle.

`make demo BROKER=spark`: through Spark, which needs no broker, but a database.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Annotated

import typer
from rich.console import Console

from idempotent.cli.demonstration import demonstrate
from idempotent.demo.command import SHARE, over_broker
from idempotent.demo.flights import FLIGHTS
from idempotent.demo.report import LiveReport
from idempotent.demo.schedule import Settings
from idempotent.demo.spark.command import over_spark
from idempotent.demo.spark.run import SparkReport
from idempotent.demo.spark.schedule import SHARE as SPARK_SHARE
from idempotent.demo.spark.schedule import SparkSettings
from idempotent.errors import IdempotentError
from tests.support.pairs import BROKERS, started
from tests.support.services import PrivateMariaDb

SPARK = "spark"


def main(
    broker: str,
    flights: Annotated[int | None, typer.Option(min=20, max=FLIGHTS)] = None,
    kills: int | None = None,
    duplicates: float = 0.05,
    seed: int = 2013,
    checker: Annotated[
        str, typer.Option(help="transactional or offsets, on a MariaDB of its own; or a URL.")
    ] = "transactional",
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Start the servers, run the demo, remove them."""
    if broker not in (*BROKERS, SPARK):
        sys.exit(f"BROKER={broker} is unknown; known: {', '.join([*BROKERS, SPARK])}")

    def run(console: Console) -> SparkReport | LiveReport:
        with ExitStack() as stack:
            if broker == SPARK:
                settings = SparkSettings(
                    flights or SPARK_SHARE,
                    kills=3 if kills is None else kills,
                    duplicates=duplicates,
                    seed=seed,
                )
                store = checker if "://" in checker else started(stack, console, PrivateMariaDb()).url
                return over_spark(console, settings, store)
            share = Settings(flights or SHARE, 5 if kills is None else kills, duplicates, seed)
            return through(stack, console, broker, checker, share)

    demonstrate(run, as_json=as_json)


def through(stack: ExitStack, console: Console, broker: str, checker: str, settings: Settings) -> LiveReport:
    """The demo over this broker, with a checker on a MariaDB if its URL is not given."""
    server = started(stack, console, BROKERS[broker]())
    url = checker
    if "://" not in checker:
        url = f"{checker}+{started(stack, console, PrivateMariaDb()).url}"
    return over_broker(
        console,
        settings,
        server.url if "://" in server.url else f"{broker}://{server.url}",
        url,
        restart=lambda: (server.kill(), server.start()),
    )


app = typer.Typer(pretty_exceptions_enable=False)
app.command()(main)

if __name__ == "__main__":
    try:
        app()
    except IdempotentError as error:
        sys.exit(f"{type(error).__name__}: {error}")
