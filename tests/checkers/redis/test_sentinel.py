"""The checker behind Sentinel: after a failover it finds the new primary by itself."""

import subprocess
import time
from contextlib import closing

import pytest
from redis.sentinel import Sentinel

from idempotent import Message, Outcome, Registry
from idempotent.checkers import RedisChecker
from tests.support.services.process import free_port

pytestmark = pytest.mark.slow


@pytest.fixture
def servers(tmp_path):
    """A primary and its replica, by their ports, and a Sentinel that watches them."""
    running = []

    def start(name, *options):
        folder = tmp_path / name
        folder.mkdir()
        output = (folder / "log").open("w")
        with output:
            running.append(
                subprocess.Popen(
                    ["redis-server", *options, "--dir", str(folder)], stdout=output, stderr=subprocess.STDOUT
                )
            )
        return running[-1]

    primary_port, replica_port, sentinel_port = free_port(), free_port(), free_port()
    primary = start("primary", "--port", str(primary_port), "--save", "", "--repl-diskless-sync-delay", "0")
    start("replica", "--port", str(replica_port), "--save", "", "--replicaof", "127.0.0.1", str(primary_port))
    settings = tmp_path / "sentinel.conf"
    settings.write_text(
        f"port {sentinel_port}\nsentinel monitor shop 127.0.0.1 {primary_port} 1\n"
        "sentinel down-after-milliseconds shop 1000\nsentinel failover-timeout shop 3000\n"
    )
    start("sentinel", str(settings), "--sentinel")
    sentinel = Sentinel([("127.0.0.1", sentinel_port)], socket_timeout=5)
    try:
        yield primary, sentinel
    finally:
        for client in sentinel.sentinels:
            client.close()
        for process in running:
            process.kill()
            process.wait()


def until(happened):
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def has_replica(sentinel):
    try:
        return len(sentinel.discover_slaves("shop")) == 1
    except Exception:
        return False


def test_a_failover_is_an_outage_and_the_keys_are_there_after_it(servers):
    primary, sentinel = servers
    until(lambda: has_replica(sentinel))
    with sentinel.master_for("shop", socket_timeout=5) as client, closing(RedisChecker(client)) as checker:
        fail_over(primary, client, checker)


def fail_over(primary, client, checker):
    consumer = Registry().consumer("orders", checker=checker)(lambda message: None)
    assert consumer.process(Message("orders", id="1")).outcome is Outcome.PROCESSED
    until(lambda: client.wait(1, 1000) == 1)  # the replica has the key
    primary.kill()
    primary.wait()
    assert consumer.process(Message("orders", id="1")).outcome is Outcome.UNAVAILABLE
    until(lambda: consumer.process(Message("orders", id="1")).outcome is Outcome.DUPLICATE)
    assert consumer.process(Message("orders", id="2")).outcome is Outcome.PROCESSED
