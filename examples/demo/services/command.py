"""`python -m examples.demo services`: two services, an outbox and a relay, killed at random."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.text import Text

from examples.demo.demonstration import demonstrate, own_folder, prepared
from examples.demo.flights import FLIGHTS
from examples.demo.options import DuplicatesOption, KeepOption, SeedOption
from examples.demo.report import compared_rows
from examples.demo.schedule import DEFAULTS, Settings
from examples.demo.screen import progress
from examples.demo.services.report import ServicesReport
from examples.demo.services.run import ServicesRun
from examples.demo.stage import screen
from examples.demo.stage.screen import Row, verdict
from idempotent.cli.options import JsonOption

SHARE: Final = 10_000


def services_demo(
    flights: Annotated[
        int, typer.Option(min=20, max=FLIGHTS, metavar="N", help="How many of the real flights.")
    ] = SHARE,
    kills: Annotated[
        int, typer.Option(min=0, max=100, metavar="N", help="How often each of the three programs is killed.")
    ] = 3,
    duplicates: DuplicatesOption = DEFAULTS.duplicates,
    seed: SeedOption = DEFAULTS.seed,
    as_json: JsonOption = False,
    keep: KeepOption = False,
) -> None:
    """Send real flights through two services with an outbox between them, kill all of it, and compare with the truth.

    The first service books each flight, and sends an order for an invoice in the same transaction. A relay publishes
    what has committed. The second service makes the invoices, in another database. Both services and the relay are
    processes that are killed. At the end every row of both databases is compared with the data set.
    """
    settings = Settings(flights, kills, duplicates, seed)
    demonstrate(lambda console: _shown(console, settings, keep=keep), as_json=as_json)


def _shown(console: Console, settings: Settings, *, keep: bool) -> ServicesReport:
    with own_folder(console, keep=keep, beside="") as folder, ExitStack() as stack:
        _introduce(console, settings)
        run = ServicesRun(settings, folder)
        for service in (run.orders, run.billing):
            stack.enter_context(prepared(service, keep=keep))
        with progress(console, {lane.name: lane.state for lane in run.lanes}) as tick:
            run.deliver(tick)
        report = run.compare()
    _show(console, report)
    return report


def _introduce(console: Console, settings: Settings) -> None:
    console.print(
        f"[bold]Two services:[/bold] {settings.flights:,} real flights → [bold]orders[/bold] → outbox → "
        f"[bold]relay[/bold] → broker → [bold]billing[/bold]: {settings.duplicates:.0%} sent twice, acknowledgements "
        f"lost, and each of the three killed {settings.kills} times with SIGKILL. Seed {settings.seed}.\n",
        soft_wrap=not console.is_terminal,
    )


def _show(console: Console, report: ServicesReport) -> None:
    orders, billing = report.orders, report.billing
    figures = [
        Row("delivered", (orders.delivered, billing.delivered)),
        Row("duplicates dropped", (orders.duplicates, billing.duplicates)),
        Row("killed", (orders.crashes, billing.crashes)),
    ]
    between = [
        Row("relay killed", ("", report.relay_kills)),
        Row("published again by the relay", ("", report.published_again)),
    ]
    sections = [figures, between, *compared_rows([orders.comparison, billing.comparison])]
    table = screen.results(("orders", "billing", "truth"), sections)
    screen.show(console, table, _verdict(report))


def _verdict(report: ServicesReport) -> Iterator[Text]:
    orders, billing = report.orders, report.billing
    booked, invoiced = orders.comparison, billing.comparison
    if report.kept_promise:
        yield verdict(
            "OK",
            "green",
            f"Each of the {report.truth.flights:,} flights is booked once and invoiced once: "
            "both services are equal to the truth, row by row.",
        )
        dropped = orders.duplicates + billing.duplicates
        kills = orders.crashes + billing.crashes + report.relay_kills
        yield Text(
            f"    {booked.booked.flights:,} orders booked, {invoiced.booked.flights:,} invoices made, "
            f"{dropped:,} duplicates delivered and dropped, {kills} kills."
        )
    else:
        found = [
            f"{name}: {compared.lost:,} lost, {compared.repeated:,} repeated, {compared.strange:,} strange"
            for name, compared in (("orders", booked), ("billing", invoiced))
        ]
        yield verdict("FAILED", "red", f"The services differ from the truth. {'; '.join(found)}")
    yield Text(f"    {report.seconds:.0f} s in all.", "dim")
