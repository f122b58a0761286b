"""`python -m examples.demo spark`: watch a Spark pipeline survive duplicates and kills, on real data."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from typing import Annotated, Final

import typer
from rich.console import Console

from examples.demo.demonstration import demonstrate, own_folder, prepared
from examples.demo.flights import FLIGHTS
from examples.demo.options import KeepOption, optional_url_in
from examples.demo.spark.run import SparkReport, SparkRun
from examples.demo.spark.schedule import MONTHS, SHARE, SparkSettings
from examples.demo.spark.screen import introduce, progress, show
from examples.demo.spark.stores import SparkStores
from idempotent.cli.options import JsonOption
from idempotent.errors import ConfigurationError, MissingExtraError

_DEFAULTS: Final = SparkSettings()


def spark_demo(
    flights: Annotated[
        int,
        typer.Option(min=20, max=FLIGHTS, metavar="N", help="How many of the real flights of these months."),
    ] = SHARE,
    months: Annotated[
        int,
        typer.Option(min=1, max=MONTHS, metavar="N", help="How many months of the year; each is one run."),
    ] = _DEFAULTS.months,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            show_default="SQLite",
            callback=optional_url_in,
            help="Where the runs, their keys and the table are; with redis:// the table is in a file. "
            "Only names that begin with demo_ are made, and removed again.",
        ),
    ] = None,
    kills: Annotated[
        int, typer.Option(min=0, max=100, metavar="N", help="How often the driver is killed.")
    ] = _DEFAULTS.kills,
    duplicates: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            metavar="SHARE",
            help="How many rows come again in another file, and in another run.",
        ),
    ] = _DEFAULTS.duplicates,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Decides order, duplicates and kills.")
    ] = _DEFAULTS.seed,
    as_json: JsonOption = False,
    keep: KeepOption = False,
) -> None:
    """Publish real flights by a Spark pipeline through duplicates and kills, and compare with the truth.

    Each month is one run: read, drop what this or an earlier run had, enrich, publish to Parquet and to a table. Its
    driver is killed at random moments and started again. At the end every row of both is compared with the data set,
    and the command fails if one differs.

    Needs Java 17, and the extras spark and demo.
    """
    settings = SparkSettings(flights, months, kills, duplicates, seed)
    demonstrate(lambda console: over_spark(console, settings, store, keep=keep), as_json=as_json)


def over_spark(
    console: Console, settings: SparkSettings, store: str | None, *, keep: bool = False
) -> SparkReport:
    """Run the demo, and show it.

    Raises:
        MissingExtraError: pyspark is not installed.
        ConfigurationError: Java is not installed.
    """
    if find_spec("pyspark") is None:
        raise MissingExtraError("pyspark", "spark")
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        raise ConfigurationError(
            "Spark needs Java 17 or newer: install it, and put java into PATH or set JAVA_HOME"
        )
    with (
        own_folder(console, keep=keep) as folder,
        prepared(SparkStores.at(store, folder), keep=keep) as stores,
    ):
        introduce(console, settings, stores)
        with console.status("Reading the flights, and delivering them"):
            run = SparkRun(settings, stores, folder)
        with progress(console, run) as tick:
            run.do(tick)
        with console.status("Comparing every row with the data set"):
            report = run.compare()
    show(console, report)
    return report
