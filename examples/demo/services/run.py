"""ServicesRun: orders, relay and billing, each a process that is killed, and the comparison with the truth."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sqlalchemy import MetaData

from examples.demo.broker import FlightBroker
from examples.demo.consumers import Job
from examples.demo.flights import read_flights
from examples.demo.report import State, VariantReport
from examples.demo.run import Lane, run_lanes
from examples.demo.schedule import Settings, delivery_order, kill_points
from examples.demo.services.programs import INVOICES, ORDERS, RELAY
from examples.demo.services.report import ServicesReport
from examples.demo.stage.databases import RunTable
from examples.demo.stores import KEYS, bookings_table, keys_at
from examples.demo.truth import compare, flights_in
from idempotent.schema import outbox_tables


class Service:
    """One service: its own database, with its keys, its business table and an outbox."""

    def __init__(self, name: str, database_url: str) -> None:
        self.name: Final = name
        self.database_url: Final = database_url
        self.table: Final = RunTable(self.database_url, bookings_table(f"demo_{name}"))
        self._keys = keys_at(f"transactional+{self.database_url}")
        self._outbox = RunTable(self.database_url, outbox_tables(MetaData(), KEYS).waiting)

    @property
    def waiting(self) -> int:
        """How many messages are in its outbox."""
        return self._outbox.count()

    def job(self, batch_size: int, subject: str | None = None, broker_url: str | None = None) -> Job:
        """The job of its process, or of another one for the same database."""
        table = self.table.table.name
        return Job(self._keys.url, self.database_url, table, batch_size, subject or self.name, broker_url)

    def prepare(self) -> None:
        """Create everything, empty."""
        self._keys.prepare()
        self.table.prepare()

    def clean(self) -> None:
        """Remove it."""
        self._keys.clean()
        self.table.clean()


class InvoiceBroker(FlightBroker):
    """Delivers what the relay publishes, as often as it is published, and loses acknowledgements as the other one.

    Attributes:
        again: messages that were published again.
        is_open: more may be published.
    """

    def __init__(self, *, seed: int) -> None:
        self._published: list[tuple[str, str]] = []
        self._numbers: list[int] = []
        self._ids: set[str] = set()
        super().__init__((), self._numbers, seed=seed)
        self.again = 0
        self.is_open = True

    @property
    def published(self) -> int:
        """Messages so far."""
        return len(self._published)

    @property
    def finished(self) -> bool:
        return not self.is_open and super().finished

    def publish(self, message_id: str, body: str) -> None:
        """Take a message."""
        self.again += message_id in self._ids
        self._ids.add(message_id)
        self._published.append((message_id, body))
        # Last, because billing is served in another thread.
        self._numbers.append(self.published - 1)
        self.expected += 1

    def _id_of(self, number: int) -> str:
        return self._published[number][0]

    def _body_of(self, number: int) -> str:
        return self._published[number][1]


class ServiceLane(Lane):
    """A service, which consumes."""

    module = "examples.demo.services.programs"


class RelayLane(ServiceLane):
    """The relay: its requests are what it publishes, and it is killed with a batch in its hands.

    In turn the broker has not got the batch, and has got it without a confirmation: then the batch is published again.

    Args:
        given: as for a Lane, and so is what else is named.
        has_more: whether messages wait, or may still be sent; otherwise the relay is ended.
    """

    broker: InvoiceBroker

    def __init__(self, *given: Any, has_more: Callable[[], bool], **named: Any) -> None:
        super().__init__(*given, **named)
        self._has_more = has_more

    @property
    def done(self) -> int:
        return self.broker.published

    def check(self) -> None:
        """Also end it when nothing is left to publish."""
        super().check()
        if not self.seconds and not self._has_more():
            self.seconds = time.monotonic() - self._began
            self.stop()
            self.broker.is_open = False

    def state(self) -> State:
        """How far it is."""
        broker = self.broker
        return State(broker.published, broker.published, broker.again, self.crashes, self.seconds)

    def _crashed(self) -> None:
        """The broker keeps what it has."""

    def _serve(self, line: bytes) -> None:
        if self._killed:
            return
        with self._starting:
            child = self._child
        assert child is not None
        dies = bool(self._kills) and self.broker.published >= self._kills[0]
        if not dies or self.crashes % 2 == 0:
            for message_id, body in json.loads(line):
                self.broker.publish(message_id, body)
        if not dies:
            child.tell("confirmed")
            return
        self._killed = True
        del self._kills[0]
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)


class ServicesRun:
    """One run: flights to the orders, from their outbox through the relay to billing."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings: Final = settings
        self.orders, self.billing = (
            Service(name, f"sqlite:///{folder}/{name}.sqlite3") for name in (ORDERS, INVOICES)
        )
        flights = list(read_flights(settings.flights))
        order = delivery_order(len(flights), duplicates=settings.duplicates, seed=settings.seed)
        self._invoices = InvoiceBroker(seed=settings.seed)
        self._seconds = 0.0

        def kills(count: int, who: int) -> list[int]:
            return kill_points(count, kills=settings.kills, seed=settings.seed + who)

        batch = settings.batch_size
        self._orders_lane = ServiceLane(
            "orders",
            self.orders.job(batch),
            FlightBroker(flights, order, seed=settings.seed),
            kills(len(order), 0),
            seed=settings.seed,
            log=folder / "orders.log",
        )
        self._relay = RelayLane(
            "relay",
            self.orders.job(batch, RELAY),
            self._invoices,
            kills(len(flights), 1),
            seed=settings.seed,
            log=folder / "relay.log",
            has_more=lambda: not self._orders_lane.seconds or self.orders.waiting > 0,
        )
        self._billing_lane = ServiceLane(
            "billing",
            self.billing.job(batch),
            self._invoices,
            kills(len(flights), 2),
            seed=settings.seed,
            log=folder / "billing.log",
        )
        self.lanes: Final = (self._orders_lane, self._relay, self._billing_lane)

    def deliver(self, on_tick: Callable[[], object]) -> None:
        """Deliver all orders, until all their invoices are made.

        Raises:
            ChildEndedError: a program ended unexpectedly, or nothing was acknowledged for a minute.
        """
        began = time.monotonic()
        run_lanes(self.lanes, on_tick)
        self._seconds = time.monotonic() - began

    def compare(self) -> ServicesReport:
        """Compare the rows of both services with the data set."""
        truth = list(read_flights(self.settings.flights))

        def report(lane: Lane, service: Service) -> VariantReport:
            booked = compare(truth, flights_in(service.table))
            return VariantReport.of(lane.broker, lane.crashes, lane.seconds, booked)

        return ServicesReport(
            self.settings,
            report(self._orders_lane, self.orders),
            report(self._billing_lane, self.billing),
            self._relay.crashes,
            self._invoices.again,
            self._seconds,
        )
