"""Runs of Spark that nobody goes on with are found."""

from contextlib import closing, contextmanager

import pytest
from redis import Redis
from sqlalchemy import create_engine, text

from tests.adapters.spark.ledger.ledgers import SHARED, open_place


@pytest.fixture(params=SHARED)
def place(request):
    with contextmanager(open_place)(request.param, request) as place:
        yield place


def age(place, hours):
    """End the leases of all runs so long ago."""
    if place.kind == "redis":
        with closing(Redis.from_url(place.url)) as client:
            for name in client.scan_iter(match=f"{place.name}:run:*"):
                client.hincrby(name, "lease", -round(hours * 3600e6))
        return
    engine = create_engine(place.url)
    with engine.begin() as connection:
        connection.execute(
            text(f"UPDATE {place.name}_runs SET lease_until = lease_until - {round(hours * 3600e6)}")
        )
    engine.dispose()


def test_runs_that_nobody_goes_on_with_are_found(cli, place):
    words = ["--prefix", f"{place.name}:"] if place.kind == "redis" else ["--table", place.name]

    def found():
        answer = cli("doctor", "--url", place.url, *words, "--json")
        return {line["what"]: line["level"] for line in answer.lines if "Spark's runs" in line["what"]}

    ledger = place.ledger()
    opened = ledger.begin("orders", "2026-11-28", lease_s=60)
    prepared = ledger.begin("orders", "2026-11-29", lease_s=60)
    ledger.prepare(prepared.ref)
    assert not found(), "their drivers may be alive"
    age(place, 3)
    (of_open, of_prepared) = found()
    assert set(found().values()) == {"warning"}
    assert "(OPEN, " in of_open
    assert "'2026-11-28'" in of_open
    assert "(PREPARED, " in of_prepared
    assert "'2026-11-29'" in of_prepared
    ledger.abort(opened.ref)
    (left,) = found()
    assert "(PREPARED, " in left
