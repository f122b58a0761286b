"""Torture of one pair, beside other tests. `make brief-torture` takes all pairs, and `make torture` an hour."""

from __future__ import annotations

import json
import queue
import random
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from examples.demo.stage.leftovers import left_over
from idempotent import Registry
from idempotent.adapters import adapter_from_url
from idempotent.claims import Verdict
from idempotent.testing.proxy import Proxy
from tests.torture import Servers, Settings, TortureRun
from tests.torture.command import over_servers
from tests.torture.faults.injector import FaultInjector
from tests.torture.faults.kinds import Fault, FaultGroup, FaultKind
from tests.torture.servers import servers_of
from tests.torture.settings import GROUP
from tests.torture.stores import Store
from tests.torture.traffic import message_of


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_lost_and_nothing_unexplained(private_rabbitmq, private_mariadb):
    servers = servers_of(private_rabbitmq(), private_mariadb(), "transactional-mariadb")
    # The same faults each time, so that a failure comes again.
    report = over_servers(Console(quiet=True), Settings(seed=1, seconds=10.0), servers)
    shown = json.dumps(report.as_json(), indent=1)
    assert report.kept_promise, shown
    assert report.messages > 50, shown
    # A machine that is too busy for all of it still does some.
    assert report.groups[FaultGroup.KILL] + report.groups[FaultGroup.PAUSE], shown
    assert report.groups[FaultGroup.RESTART], shown
    assert report.groups.total() - report.groups[FaultGroup.RESTART] > 3, shown


@pytest.mark.slow
def test_what_waits_for_a_lease_at_the_end_is_waited_for(rabbitmq_url, redis_url, tmp_path):
    """A processed message comes again after its key was lost, and the process that claims it dies: wait for a lease."""
    settings = Settings(seed=3, seconds=1.0, processes=1, lease_s=5.0)
    run = TortureRun(settings, Servers(rabbitmq_url, redis_url), "torture_waits", tmp_path)
    copy = message_of("torture_waits", settings.seed, 0, has_bytes=True)
    checker = run.store.checker()
    dead = Registry().consumer(copy.subject, group=GROUP, checker=checker)(lambda _: None)
    sent = []

    def send_it_again():
        if run.producer.finished and run.finished == run.traffic.begun and not sent:
            run.store.lose_keys(1.0, random.Random())
            sent.append(checker.protocol.claim(dead.binding.requests.of(copy)).verdict)
            checker.close()  # which ends the renewal, and no lease
            adapter = adapter_from_url(rabbitmq_url)
            adapter.publish(copy)
            adapter.close()

    run.run(send_it_again)
    assert sent == [Verdict.ACQUIRED]
    report = run.report()
    assert report.left == (), report.traces


@pytest.mark.slow
def test_what_comes_after_the_silence_is_processed_too(rabbitmq_url, redis_url, tmp_path):
    """Not even a silence as long as a lease proves that the broker has nothing."""
    settings = Settings(seed=3, seconds=1.0, processes=1, lease_s=1.0)
    copy = message_of("torture_late", settings.seed, 0, has_bytes=True)
    sent = []

    def after_one_more(*about):
        if not sent:
            sent.append(copy)
            adapter = adapter_from_url(rabbitmq_url)
            adapter.publish(copy)
            adapter.close()
        return left_over(*about)

    servers = Servers(rabbitmq_url, redis_url)
    run = TortureRun(settings, servers, "torture_late", tmp_path, find_left=after_one_more)
    run.run()
    report = run.report()
    assert sent
    assert report.kept_promise, report.traces
    assert report.left == ()


def test_a_late_packet_arrives_although_another_is_to_be_lost_meanwhile(tmp_path):
    """Else its connection, and the transaction in it, would stay open for the rest of the run, and the key locked."""
    arrived, ended = queue.SimpleQueue(), threading.Event()

    def serve(connection):
        with connection:
            while packet := connection.recv(100):
                arrived.put(packet)
        ended.set()

    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=lambda: serve(server.accept()[0]), daemon=True).start()
    proxy = Proxy(*server.getsockname(), patience_s=0.1)
    slot = SimpleNamespace(store_proxy=proxy, process="0.1", busy=False, look=lambda: None)
    store = Store(f"transactional+sqlite:///{tmp_path}/store.db", "late", lease_s=1.0)
    faults = [Fault(0.0, FaultKind.LATE_STORE_QUESTION, 0), Fault(0.1, FaultKind.LOSE_STORE_QUESTION, 0)]
    incidents = []
    injector = FaultInjector(faults, [slot], None, Servers("amqp://", store.url), store, 1, incidents.append)
    injector.act(0.0)
    with socket.create_connection(("127.0.0.1", proxy.port)) as client:
        client.sendall(b"COMMIT")
        assert client.recv(100) == b"", "the connection was cut"
    assert arrived.empty()
    injector.act(0.1)
    assert not injector._due
    until = time.monotonic() + 30
    while not ended.is_set() and time.monotonic() < until:
        injector.act(1.0)
        time.sleep(0.01)
    assert arrived.get_nowait() == b"COMMIT"
    assert [incident.kind for incident in incidents] == [FaultKind.LATE_STORE_QUESTION]
    injector.close()
    proxy.close()
    server.close()
