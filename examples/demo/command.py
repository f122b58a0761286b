"""`python -m examples.demo flights`: watch duplicates and crashes do no harm, on real data."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Final

import typer
from rich.console import Console

from examples.demo.demonstration import demonstrate, own_folder, prepared
from examples.demo.flights import FLIGHTS
from examples.demo.live import LiveRun
from examples.demo.options import DuplicatesOption, KeepOption, SeedOption, optional_url_in
from examples.demo.report import LiveReport, Report
from examples.demo.run import Run
from examples.demo.schedule import DEFAULTS, Settings
from examples.demo.screen import introduce, introduce_live, progress, show, show_live
from examples.demo.stage.places import place_at
from examples.demo.stores import Stores
from idempotent.cli.options import JsonOption
from idempotent.errors import AdapterError, ConfigurationError

_SMALL: Final = 20_000
SHARE: Final = 40_000
_NEEDS_KAFKA: Final = (
    "an OffsetChecker counts offsets, which only Kafka has: "
    "add --broker kafka://host:9092, or use transactional+"
)


def demo(
    flights: Annotated[
        int | None,
        typer.Option(
            min=20,
            max=FLIGHTS,
            metavar="N",
            show_default=f"all {FLIGHTS:,}; {SHARE:,} with --broker",
            help="How many of the real flights; 2000 is quick.",
        ),
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            show_default="none, one is simulated",
            callback=optional_url_in,
            help="Send them over a real broker: amqp://, stomp:// or kafka://. Only a queue or topic named "
            "demo_flights_... is made, and removed again where the broker allows it.",
        ),
    ] = None,
    checker: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            show_default="transactional, on SQLite",
            callback=optional_url_in,
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
    duplicates: DuplicatesOption = DEFAULTS.duplicates,
    seed: SeedOption = DEFAULTS.seed,
    as_json: JsonOption = False,
    keep: KeepOption = False,
) -> None:
    """Book real flights through duplicates and crashes, with a checker and without, and compare with the truth.

    A broker delivers the flights at least once. Two processes consume the same deliveries and are killed at the same
    points; one books behind a checker. At the end every row of both tables is compared with the data set, and the
    command fails if the checker's table differs.

    With --broker two processes consume from a real broker, behind a checker, and one at a time is killed.
    """
    wanted = flights or (FLIGHTS if broker is None else SHARE)
    few = wanted <= _SMALL
    settings = Settings(wanted, (2 if few else 5) if kills is None else kills, duplicates, seed)

    def run(console: Console) -> Report | LiveReport:
        if broker is None:
            return _simulated(console, settings, checker, keep=keep)
        return over_broker(console, settings, broker, checker, keep=keep)

    demonstrate(run, as_json=as_json)


def _simulated(console: Console, settings: Settings, checker: str | None, *, keep: bool) -> Report:
    with own_folder(console, keep=keep) as folder, prepared(Stores(checker, folder), keep=keep) as stores:
        if stores.keys.by_position:
            raise ConfigurationError(_NEEDS_KAFKA)
        introduce(console, settings, stores)
        with console.status("Reading the flights"):
            run = Run(settings, stores, folder)
        with progress(console, {lane.name: lane.state for lane in run.lanes}) as tick:
            run.deliver(tick)
        with console.status("Comparing every row with the data set"):
            report = run.compare()
    show(console, report)
    return report


def over_broker(
    console: Console,
    settings: Settings,
    broker: str,
    checker: str | None,
    *,
    keep: bool = False,
    restart: Callable[[], object] | None = None,
) -> LiveReport:
    """The run over a real broker. `restart` kills the broker and starts it again, once in the middle."""
    place = place_at(broker, f"demo_flights_{secrets.token_hex(4)}", settings.batch_size)
    with own_folder(console, keep=keep) as folder, prepared(Stores(checker, folder), keep=keep) as stores:
        if stores.keys.by_position and not place.has_offsets:
            raise ConfigurationError(_NEEDS_KAFKA)
        introduce_live(console, settings, stores, place, restarts=restart is not None)
        with console.status("Reading the flights"):
            run = LiveRun(settings, stores, place, folder, restart)
        place.make()
        try:
            with progress(console, {"two consumers": run.state}) as tick:
                run.deliver(tick)
            with console.status("Comparing every row with the data set"):
                report = run.compare()
        finally:
            with suppress(AdapterError):
                place.remove()
    show_live(console, report)
    return report
