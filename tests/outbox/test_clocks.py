"""The database's clock goes back: after the start of a saved virtual machine, for example, or a failover."""

import logging
import time

import pytest
import sqlalchemy as sa

from idempotent import Message
from idempotent.migrations import upgrade
from idempotent.outbox import Outbox
from tests.outbox.picky import Picky, relay, until
from tests.support.logs import events, logged
from tests.torture.clocks import movable_clock, no_wrong_clocks


def set_clock_back(store, tables, by_s=3600):
    """What is left of each lease is longer by that, as after a step of the database's clock."""
    leases = tables.leases
    with store.admin_engine.begin() as connection:
        connection.execute(leases.update().values(lease_until=leases.c.lease_until + by_s * 1_000_000))


def test_a_relay_that_died_before_the_clock_went_back_is_replaced_when_its_own_lease_has_ended(
    outbox, send, waiting, tables, sql_store, caplog
):
    caplog.set_level(logging.INFO)
    dead = relay(outbox, Picky(), lease_s=2.0)
    dead._destinations[0].leases._look(time.monotonic())
    set_clock_back(sql_store, tables)
    assert outbox.store.stats().relays == 0  # of those whose lease can be
    send("1")
    adapter = Picky()
    with relay(outbox, adapter, lease_s=12.0):
        until(lambda: outbox.store.stats().idle_relays == 1)
        until(lambda: (outbox.store.stats().leases_end_s or 0.0) <= 2)
        until(lambda: adapter.bodies == ["1"])
    assert sum(each.buckets for each in logged(caplog, "relay_leases_ended")) == 64
    (told,) = logged(caplog, "relay_clock_went_back")
    assert told.leases == 65
    assert 3500 < told.back_s <= 3600


@pytest.mark.slow
def test_relays_that_live_keep_their_buckets_when_the_clock_goes_back(
    outbox, send, waiting, tables, sql_store, caplog
):
    if sql_store.kind == "sqlite":
        pytest.skip("SQLite is for one process")
    adapters = [Picky() for _ in range(2)]
    relays = [relay(outbox, adapter, lease_s=12.0) for adapter in adapters]

    def shares():
        return [set(each._destinations[0].leases._buckets) for each in relays]

    with relays[0], relays[1]:
        until(lambda: [len(each) for each in shares()] == [32, 32])
        before = shares()
        for number in range(3):
            set_clock_back(sql_store, tables)
            send(*(f"{number} {each}" for each in range(100)))
            until(lambda: not waiting())
            time.sleep(4.0)  # each looks every two seconds
            assert outbox.store.stats().leases_end_s <= 12
        assert shares() == before
    published = [one for adapter in adapters for one in adapter.published]
    assert len(published) == len(set(published)) == 300
    assert "relay_leases_ended" not in events(caplog)


@pytest.mark.slow
@pytest.mark.parametrize("server", ["private_postgres", "private_mariadb"])
def test_a_server_whose_clock_goes_back_an_hour(request, server, tmp_path, monkeypatch, caplog):
    if why := no_wrong_clocks():
        pytest.skip(why)
    clock = movable_clock(tmp_path / "clock", monkeypatch)
    engine = sa.create_engine(request.getfixturevalue(server)().url)
    monkeypatch.undo()
    upgrade(engine)
    outbox = Outbox(engine)
    caplog.set_level(logging.INFO)
    dead = relay(outbox, Picky(), lease_s=2.0)
    dead._destinations[0].leases._look(time.monotonic())
    with engine.begin() as connection:
        outbox.send(connection, Message("invoices", b"1"))
    clock.write_text("-3600\n")
    adapter = Picky()
    with relay(outbox, adapter, lease_s=2.0):
        until(lambda: adapter.bodies == ["1"])
    (told,) = logged(caplog, "relay_clock_went_back")
    assert 3500 < told.back_s <= 3601
    outbox.close()
    engine.dispose()
