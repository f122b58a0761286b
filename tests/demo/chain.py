"""`make demo BROKER=rabbitmq`, its second half: flights through two services with an outbox between them.

The orders are on a MariaDB, billing on a PostgreSQL. Both services and two relays are killed at random, the broker and
both databases once each, and at the end both tables are compared with the data set.
"""

from __future__ import annotations

import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from examples.demo.demonstration import demonstrate, own_folder, prepared
from examples.demo.flights import FLIGHTS, read_flights
from examples.demo.live import ConsumerProcess, batches
from examples.demo.report import compared_rows
from examples.demo.schedule import Settings, delivery_order
from examples.demo.services.programs import RELAY
from examples.demo.services.run import Service
from examples.demo.stage import screen
from examples.demo.stage.children import ChildEndedError
from examples.demo.stage.leftovers import Silence
from examples.demo.stage.places import Place, RabbitMqPlace, place_at
from examples.demo.stage.producer import Producer
from examples.demo.stage.screen import Row, verdict
from examples.demo.truth import Comparison, compare, flights_in
from idempotent.errors import AdapterError, ConfigurationError, StoreError
from idempotent.outcomes import Outcome
from tests.support.pairs import BROKERS, started
from tests.support.services import PrivateMariaDb, PrivatePostgres

SHARE = 10_000
STALLED_S = 120.0
PAUSE_S = 0.2, 1.0
"""Between two kills."""


@dataclass
class ServicesReport:
    """One run. A killed process does not tell its last duplicates."""

    settings: Settings
    broker: str
    kills: int
    restarts: int
    duplicates: dict[str, int]
    seconds: float
    orders: Comparison
    billing: Comparison
    waiting: int
    """In the outbox at the end."""

    @property
    def kept_promise(self) -> bool:
        return self.orders.equal and self.billing.equal and not self.waiting

    def as_json(self) -> dict[str, Any]:
        return {"ok": self.kept_promise, **asdict(self)}


class Program(ConsumerProcess):
    """A service or a relay."""

    module = "tests.demo.program"


class ServicesRun:
    """One run.

    Args:
        settings: of the run; `kills` is for each of the four processes.
        broker_url: of the broker.
        orders_url: the database of the orders.
        billing_url: the database of billing.
        folder: for logs.
        restarts: each kills a server and starts it again.
        of_relays: what is added to the broker's URL for the relays.
    """

    def __init__(
        self,
        settings: Settings,
        broker_url: str,
        orders_url: str,
        billing_url: str,
        folder: Path,
        restarts: Sequence[Callable[[], object]] = (),
        of_relays: str = "",
    ) -> None:
        self.settings, self.seconds, self.kills = settings, 0.0, 0
        self.orders, self.billing = Service("orders", orders_url), Service("billing", billing_url)
        self.places = [self._place(broker_url, name) for name in ("orders", "invoices")]
        self._flights = list(read_flights(settings.flights))
        self._order = delivery_order(len(self._flights), duplicates=settings.duplicates, seed=settings.seed)
        self._restarts = list(restarts)
        self._rng = random.Random(f"services {settings.seed}")
        orders, invoices = self.places
        relay = RELAY, None, self.orders.job(settings.batch_size, RELAY, broker_url + of_relays)
        jobs = {
            "orders": ("orders", invoices.subject, self._job(self.orders, orders)),
            "billing": ("billing", None, self._job(self.billing, invoices)),
            "relay-1": relay,
            "relay-2": relay,
        }
        self._programs = {name: Program(job, folder / f"{name}.log") for name, job in jobs.items()}

    def deliver(self, on_tick: Callable[[str], object] = lambda _: None) -> None:
        """Send all orders, until each is booked and invoiced.

        Raises:
            ChildEndedError: a program ended unexpectedly, or nothing was done for two minutes.
        """
        began, (orders, _) = time.monotonic(), self.places
        producer = Producer(orders.adapter, batches(orders.subject, self._flights, self._order))
        producer.start()
        try:
            for program in self._programs.values():
                program.start()
            self._until_done(on_tick)
            producer.join()
            for program in self._programs.values():
                program.stop()
        finally:
            for program in self._programs.values():
                program.kill()
            producer.stop()
        self.seconds = time.monotonic() - began

    def compare(self, restarts: int = 0) -> ServicesReport:
        orders, billing = (
            compare(self._flights, flights_in(service.table)) for service in (self.orders, self.billing)
        )
        duplicates = {
            name: program.outcomes[Outcome.DUPLICATE]
            for name, program in self._programs.items()
            if not name.startswith("relay")
        }
        return ServicesReport(
            self.settings,
            self.places[0].broker,
            self.kills,
            restarts,
            duplicates,
            round(self.seconds, 1),
            orders,
            billing,
            self.orders.waiting,
        )

    @staticmethod
    def _place(broker_url: str, name: str) -> Place:
        place = place_at(broker_url, f"demo_{name}_{secrets.token_hex(4)}", Settings(20).batch_size)
        if isinstance(place, RabbitMqPlace):
            place.queues = {place.subject: {}}  # a relay may publish before billing has made its queue
        return place

    def _job(self, service: Service, place: Place) -> Any:
        return service.job(self.settings.batch_size, place.subject, place.url)

    def _until_done(self, on_tick: Callable[[str], object]) -> None:
        """Kill, restart, and wait until all is booked, nothing waits, and duplicates too have come to an end."""
        total, silence, servers = 2 * self.settings.flights, Silence(), len(self._restarts)
        kills_left = self.settings.kills * len(self._programs)
        next_kill = 0.0
        while True:
            time.sleep(0.1)
            done = self._done()
            seen = sum((program.outcomes for program in self._programs.values()), Counter()).total()
            on_tick(f"{done:,} of {total:,} rows, {kills_left} kills to come")
            for program in self._programs.values():
                program.check()
            quiet_s = silence.seconds(done + seen)
            if self._restarts and done >= total * (servers - len(self._restarts) + 1) // (servers + 1):
                self._restarts.pop(0)()
                silence.restart()
            elif kills_left and time.monotonic() >= next_kill:
                if self._kill_one(settled=done >= total):
                    kills_left -= 1
                next_kill = time.monotonic() + self._rng.uniform(*PAUSE_S)
            elif done >= total and not self.orders.waiting and quiet_s > self.places[0].quiet_s + 2.0:
                return
            elif quiet_s > STALLED_S:
                words = [f"{name}: {program.last_words()}" for name, program in self._programs.items()]
                raise ChildEndedError(f"nothing was done for {STALLED_S:.0f} s. {'; '.join(words)}")

    def _done(self) -> int:
        with suppress(StoreError):  # while its server is started again
            self._last = self.orders.table.count() + self.billing.table.count()
        return self._last

    _last = 0

    def _kill_one(self, *, settled: bool) -> bool:
        """Kill a program that works: a death at birth shows nothing. A relay tells of nothing but its start."""
        at_work = [
            program
            for name, program in self._programs.items()
            if program.is_up and (settled or program.at_work or name.startswith("relay"))
        ]
        if not at_work:
            return False
        victim = self._rng.choice(at_work)
        victim.kill()
        self.kills += 1
        victim.start()
        return True


def through_services(
    console: Console,
    settings: Settings,
    broker_url: str,
    orders_url: str,
    billing_url: str,
    restarts: Sequence[Callable[[], object]] = (),
    of_relays: str = "",
) -> ServicesReport:
    """The run in a folder and tables of its own, all removed at the end."""
    with own_folder(console, keep=False, name="services") as folder, ExitStack() as stack:
        run = ServicesRun(settings, broker_url, orders_url, billing_url, folder, restarts, of_relays)
        console.print(
            f"[bold]Two services:[/bold] {settings.flights:,} real flights → [bold]orders[/bold] → outbox → "
            f"two relays → {run.places[0].broker} → [bold]billing[/bold]: {settings.duplicates:.0%} sent twice, each "
            f"process killed "
            f"{settings.kills} times, {len(restarts)} servers once. Seed {settings.seed}.\n",
            soft_wrap=not console.is_terminal,
        )
        for service in (run.orders, run.billing):
            stack.enter_context(prepared(service, keep=False))
        for place in run.places:
            stack.callback(_removed, place)
            place.make()
        with console.status("Starting") as status:
            run.deliver(status.update)
        return run.compare(len(restarts))


def _removed(place: Place) -> None:
    with suppress(AdapterError):
        place.remove()


def show(console: Console, report: ServicesReport) -> None:
    figures = [
        Row("duplicates dropped", [*report.duplicates.values(), ""]),
        Row("killed, with the relays", [report.kills, "", ""]),
        Row("servers restarted", [report.restarts, "", ""]),
    ]
    sections = [figures, *compared_rows([report.orders, report.billing])]
    table = screen.results(("orders", "billing", "truth"), sections)
    said = (
        "each flight is booked once and invoiced once"
        if report.kept_promise
        else "they differ from the truth"
    )
    word, colour = ("OK", "green") if report.kept_promise else ("FAILED", "red")
    screen.show(
        console, table, iter([verdict(word, colour, f"{report.broker}, {report.seconds:.0f} s: {said}.")])
    )


def services_over(
    broker: str,
    flights: Annotated[int, typer.Option(min=20, max=FLIGHTS)] = SHARE,
    kills: Annotated[int, typer.Option(min=0)] = 3,
    duplicates: float = 0.05,
    seed: int = 2013,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Start the servers, run the demo, remove them."""
    if broker not in BROKERS:
        raise ConfigurationError(f"BROKER={broker} is unknown; known: {', '.join(BROKERS)}")

    def run(console: Console) -> ServicesReport:
        with ExitStack() as stack:
            servers = [
                started(stack, console, kind()) for kind in (BROKERS[broker], PrivateMariaDb, PrivatePostgres)
            ]
            of_broker, orders_url, billing_url = (server.url for server in servers)
            report = through_services(
                console,
                Settings(flights, kills, duplicates, seed),
                of_broker if "://" in of_broker else f"{broker}://{of_broker}",
                orders_url,
                billing_url,
                [restarting(server) for server in servers],
            )
            show(console, report)
            return report

    demonstrate(run, as_json=as_json)


def restarting(server: Any) -> Callable[[], object]:
    """Kills a server and starts it again."""

    def restart() -> None:
        server.kill()
        server.start()

    return restart
