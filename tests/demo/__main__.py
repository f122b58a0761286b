"""`make demo BROKER=rabbitmq`: the demos over a broker that is started for them alone, and killed in the middle.

`make demo BROKER=spark`: through Spark, which needs no broker, but a database.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer
from rich.console import Console

from examples.demo.command import SHARE, over_broker
from examples.demo.demonstration import demonstrate, program
from examples.demo.flights import FLIGHTS
from examples.demo.report import LiveReport
from examples.demo.schedule import Settings
from examples.demo.spark.command import over_spark
from examples.demo.spark.run import SparkReport
from examples.demo.spark.schedule import SHARE as SPARK_SHARE
from examples.demo.spark.schedule import SparkSettings
from idempotent.errors import ConfigurationError
from tests.demo.chain import services_over
from tests.support.pairs import BROKERS, started
from tests.support.services import PrivateMariaDb

SPARK = "spark"


def flights_over(
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
        raise ConfigurationError(f"BROKER={broker} is unknown; known: {', '.join([*BROKERS, SPARK])}")

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


app = program(
    "python -m tests.demo",
    {
        flights_over: ("flights rabbitmq", "flights spark"),
        services_over: ("services rabbitmq", "services kafka --flights 2000"),
    },
)

if __name__ == "__main__":
    app(prog_name="python -m tests.demo")
