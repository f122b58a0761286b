"""Orders, outbox, broker, billing: each flight is booked and invoiced once, whatever is killed on the way."""

import secrets

import pytest
from rich.console import Console

from examples.demo.schedule import Settings
from tests.demo.chain import restarting, through_services
from tests.support.pairs import BROKERS
from tests.support.services import PrivateMariaDb, PrivatePostgres

FEW = Settings(flights=3000, kills=3, duplicates=0.1)


@pytest.fixture
def through(spare):
    """`through(broker, swapped=True)`: a run whose orders are on PostgreSQL."""

    def run(broker, *, of_relays="", swapped=False):
        servers = [spare(kind) for kind in (BROKERS[broker], PrivateMariaDb, PrivatePostgres)]
        of_broker, *databases = (server.url for server in servers)
        url = of_broker if "://" in of_broker else f"{broker}://{of_broker}"
        orders_url, billing_url = reversed(databases) if swapped else databases
        restarts = [restarting(server) for server in servers]
        return through_services(Console(quiet=True), FEW, url, orders_url, billing_url, restarts, of_relays)

    return run


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("broker", [*BROKERS, "fenced kafka"])
def test_each_flight_is_booked_and_invoiced_once_although_everything_is_killed(broker, through):
    fenced = broker == "fenced kafka"
    report = through(
        "kafka" if fenced else broker,
        of_relays=f"?fenced=true&transactional_id=demo-{secrets.token_hex(4)}" if fenced else "",
        swapped=broker in ("rabbitmq", "fenced kafka"),
    )
    assert report.kept_promise, report.as_json()
    assert report.orders.truth.flights == FEW.flights
    # On a busy machine a service may have booked everything before its last kill.
    assert 2 * FEW.kills < report.kills <= 4 * FEW.kills
    assert report.restarts == 3
    assert report.duplicates["orders"] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_a_checker_flights_are_invoiced_again(through, monkeypatch):
    monkeypatch.setenv("IDEMPOTENT_DISABLED", "all")
    report = through("rabbitmq")
    assert not report.kept_promise
    assert report.orders.repeated > 0
    assert report.billing.repeated > 0
