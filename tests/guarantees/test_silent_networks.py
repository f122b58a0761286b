"""A network that swallows every packet: other connections keep the leases, and late renewals are counted."""

import os
import socket
import sys
import threading
import time

import pytest
import redis
import sqlalchemy as sa

from idempotent import Outcome
from idempotent.checkers import MemoryChecker, RedisChecker, SqlChecker, leases
from idempotent.checkers.leases import LeaseKeeper
from idempotent.claims import ClaimRequest
from idempotent.errors import StoreUnavailableError
from idempotent.observe import Event, counters
from idempotent.testing.proxy import Proxy
from tests.guarantees.orders import ORDERS, consumer_of, message, wait
from tests.support.hooks import answering
from tests.support.stores import Clock, open_store

KEY = ORDERS.key("1")
LEASE_S = 6.0


@pytest.fixture(params=["mysql", "postgres", "redis"])
def cut_off(request):
    """(a checker, a function that silences its present connections, an admin on other connections)."""
    for store in open_store(request.param, request, reuse=True):
        url = sa.make_url(store.url)
        proxy = Proxy(url.host, url.port)
        made, silence = (_redis if request.param == "redis" else _sql)(store, proxy, url.port)
        yield made, silence, store.leased().admin()
        proxy.close()
        for thread in threading.enumerate():
            if thread.name == "idempotent-renewal":
                thread.join(20)  # what hung has an error now
        made.close()


def _sql(store, proxy, port):
    engine = store.engine()
    to = [proxy.port]

    @sa.event.listens_for(engine, "do_connect")
    def connect(_dialect, _record, _arguments, options):
        options["port"] = to[0]

    def silence():
        to[0] = port
        proxy.stall()

    checker = SqlChecker(engine, table=store.table, lease_s=LEASE_S)
    burst(checker.store.connections, 8)
    return checker, silence


def burst(connections, more):
    """Have so many connections idle, each as dead as the others when the network is."""
    connections.run(lambda _: burst(connections, more - 1) if more else None)


def _redis(store, proxy, port):
    client = redis.Redis.from_url(sa.make_url(store.url).set(port=proxy.port).render_as_string(False))
    store.opened.callback(client.close)
    client.connection_pool.connection_kwargs["socket_timeout"] = None

    def silence():
        client.connection_pool.connection_kwargs["port"] = port
        proxy.stall()

    return RedisChecker(client, prefix=f"{store.table}:", lease_s=LEASE_S), silence


@pytest.mark.slow
def test_a_renewal_on_a_silent_connection_is_replaced_before_the_lease_ends(cut_off, caplog):
    checker, silence, admin = cut_off
    waited_s = []

    def handle(message):
        silence()
        began, ends = time.monotonic(), admin.get(KEY).lease_until_us
        wait(lambda: admin.get(KEY).lease_until_us > ends, "the lease is renewed")
        waited_s.append(time.monotonic() - began)

    result = consumer_of(checker, handle).process(message())
    assert result.outcome is Outcome.PROCESSED, result.error
    assert waited_s[0] < LEASE_S
    assert "lease_renewal_hangs" in caplog.text


def test_so_many_renewals_may_hang_and_no_more(monkeypatch):
    monkeypatch.setattr(leases, "_SHORTEST_PATIENCE_S", 0.01)
    checker = MemoryChecker(lease_s=0.3)
    hanging, gate = [], threading.Event()

    def hang(claims):
        hanging.append(claims)
        gate.wait(30)
        return [True] * len(claims)

    keeper = LeaseKeeper(hang, lambda: None, 0.3, counters.add)
    keeper.hold([checker.protocol.claim(ClaimRequest(KEY)).claim])
    wait(lambda: len(hanging) == 8, "they are replaced")
    time.sleep(0.3)
    assert len(hanging) == 8
    gate.set()
    wait(lambda: len(hanging) > 8, "it goes on when they have ended")
    keeper.close()
    checker.close()


def late():
    return counters.snapshot().get(("orders:default", Event.LEASE_RENEWED_LATE), 0)


def test_a_lease_that_ends_while_a_handler_holds_the_gil_is_counted(caplog):
    checker = MemoryChecker(lease_s=0.3)
    before = late()

    def handle(message):
        switch_s = sys.getswitchinterval()
        sys.setswitchinterval(60)
        try:
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                pass
        finally:
            sys.setswitchinterval(switch_s)

    assert consumer_of(checker, handle).process(message()).outcome is Outcome.PROCESSED
    assert late() > before
    assert "lease_renewed_late" in caplog.text
    assert "held the GIL" in caplog.text
    checker.close()


def test_a_lease_that_ends_while_the_store_is_away_is_no_fault_of_a_handler(private_redis, caplog):
    server = private_redis()
    checker = RedisChecker(server.url, lease_s=1.0)
    assert checker.lead("metrics").take()
    before = late()

    def handle(message):
        server.pause()
        time.sleep(2.0)
        server.resume()
        wait(lambda: late() > before, "the renewal")

    assert consumer_of(checker, handle).process(message()).outcome is Outcome.PROCESSED
    (line,) = [vars(each) for each in caplog.records if "lease_renewed_late" in each.getMessage()]
    assert line["consumer"] == "orders:default", "nobody has to do anything about a key of the library's own"
    assert "the store did not renew it" in line["hint"]
    checker.close()


def test_a_renewal_that_the_store_refuses_is_no_fault_of_a_handler_either(caplog):
    checker = MemoryChecker(lease_s=0.3, clock=Clock())
    answers = [StoreUnavailableError("gone"), StoreUnavailableError("gone")]

    def renew(claims):
        time.sleep(0.2)
        if answers:
            raise answers.pop()
        return checker._renew_many(claims)

    keeper, before = LeaseKeeper(renew, lambda: None, 0.3, counters.add), late()
    keeper.hold([checker.protocol.claim(ClaimRequest(KEY)).claim])
    wait(lambda: late() > before, "the renewal")
    wait(lambda: "the store did not renew it" in caplog.text, "the log, which comes after the count")
    assert "GIL" not in caplog.text
    keeper.close()
    checker.close()


def test_a_renewal_that_comes_too_late_is_counted_once():
    checker = MemoryChecker(lease_s=0.6, clock=Clock())
    before = late()
    slow = [0.7, 0.0]

    def renew(claims):
        time.sleep(slow.pop(0) if slow else 0.0)
        return checker._renew_many(claims)

    with answering(checker, _renew_many=renew):
        result = consumer_of(checker, lambda _: wait(lambda: late() > before, "counted")).process(message())
    assert result.outcome is Outcome.PROCESSED
    assert late() == before + 1
    checker.close()


def test_a_lease_that_is_renewed_in_time_is_not_counted():
    checker = MemoryChecker(lease_s=600.0)
    before, renewed = late(), []

    def renew(claims):
        renewed.append(claims)
        return checker._renew_many(claims)

    with answering(checker, _renew_many=renew):
        # Started here, since a machine that is paused would be late for short leases.
        consumer_of(checker, lambda _: [checker.protocol._keeper._round() for _ in range(5)]).process(
            message()
        )
    assert len(renewed) == 5
    assert late() == before
    checker.close()


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_the_system_ends_a_silent_connection_before_a_lease_does(kind, request):
    for store in open_store(kind, request, reuse=True):
        checker = store.leased(lease_s=9.0)
        raw = checker.store.connections.run(lambda driver: driver.raw)
        end = socket.socket(fileno=os.dup(getattr(raw, "_sock", raw).fileno()))
        with end:
            assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 3000
            assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1


@pytest.mark.parametrize(("lease_s", "timeout_s"), [(30.0, 5.0), (6.0, 2.0), (None, 5.0)])
def test_a_redis_client_waits_no_longer_than_a_third_of_a_lease(lease_s, timeout_s):
    checker = RedisChecker("redis://127.0.0.1:1", lease_s=lease_s)
    assert checker.store.client.get_connection_kwargs()["socket_timeout"] == timeout_s
    checker.close()
