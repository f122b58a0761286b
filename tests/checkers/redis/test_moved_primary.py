"""The server behind the open connections is not the primary any more; new connections reach the one that is."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import pytest
import redis

from idempotent import Message, Outcome, Registry
from idempotent.checkers import RedisChecker

ERRORS = [
    "READONLY You can't write against a read only replica.",
    "LOADING Redis is loading the dataset in memory",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "CLUSTERDOWN The cluster is down",
    "NOREPLICAS Not enough good replicas to write.",
    "NOAUTH Authentication required.",
]


class Switch:
    """A port that leads to a server. Once it has an error, those who were connected get that as each answer."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.born = 0
        self.error = ""
        self._old: set[int] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def fail(self, error: str) -> None:
        self._old = set(range(self.born))
        self.error = error

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                threading.Thread(target=self._forward, args=(client, server, self.born), daemon=True).start()
                threading.Thread(target=self._back, args=(server, client), daemon=True).start()
                self.born += 1

    def _forward(self, client: socket.socket, server: socket.socket, number: int) -> None:
        with suppress(OSError), client, server, client.makefile("rb") as commands:
            while command := _read(commands):
                if self.error and number in self._old:
                    client.sendall(f"-{self.error}\r\n".encode())
                else:
                    server.sendall(command)

    @staticmethod
    def _back(server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while answer := server.recv(65536):
                client.sendall(answer)


def _read(commands) -> bytes:
    """One command, as it is on the wire."""
    head = commands.readline()
    parts = [head]
    for _ in range(int(head[1:])) if head else ():
        size = commands.readline()
        parts += [size, commands.read(int(size[1:]) + 2)]
    return b"".join(parts)


@pytest.fixture
def switch(redis_url):
    where = redis.connection.parse_url(redis_url)
    made = Switch(where.get("host", "127.0.0.1"), where["port"])
    yield made
    made.close()


def clients(redis_url, switch):
    where = {**redis.connection.parse_url(redis_url), "host": "127.0.0.1", "port": switch.port}
    no_retry = {"retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0)}

    class Own(redis.Redis):
        """A class of the application's, whose connections are those of its pool."""

    yield "direct", redis.Redis(**where, **no_retry)
    yield "retrying", redis.Redis(**where)
    yield "pooled", Own(**where, **no_retry)
    yield "blocking", Own(connection_pool=redis.BlockingConnectionPool(**where, **no_retry))


class Busy:
    """A consumer in the middle of four messages, so that there are several connections."""

    def __init__(self, client, prefix) -> None:
        self._started, self._gate = threading.Barrier(5), threading.Event()
        checker = RedisChecker(client, prefix=prefix, lease_s=2.0)
        self.consumer = Registry().consumer("orders", checker=checker)(self._handle)
        self._results = []
        self._threads = [threading.Thread(target=self._run, args=(name,)) for name in self.held]
        for thread in self._threads:
            thread.start()
        self._started.wait(20)

    held = ("held 1", "held 2", "held 3", "held 4")

    def _run(self, name):
        self._results.append(self.consumer.process(Message("orders", id=name)))

    def _handle(self, message):
        if message.id in self.held:
            self._started.wait(20)
            self._gate.wait(60)

    def finish(self):
        self._gate.set()
        for thread in self._threads:
            thread.join(20)
        return {result.outcome for result in self._results}


KINDS = ["direct", "retrying", "pooled", "blocking"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.split()[0])
def test_the_second_message_is_processed(redis_url, prefix, switch, kind, error):
    busy = Busy(dict(clients(redis_url, switch))[kind], prefix)
    switch.fail(error)
    outcomes = [busy.consumer.process(Message("orders", id=str(n))).outcome for n in range(4)]
    assert outcomes[1:] == [Outcome.PROCESSED] * 3
    assert busy.finish() == {Outcome.PROCESSED}
    together = busy.consumer.process_many([Message("orders", id=f"more {n}") for n in range(300)])
    assert {result.outcome for result in together} == {Outcome.PROCESSED}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_leases_are_renewed(redis_url, prefix, switch, kind):
    busy = Busy(dict(clients(redis_url, switch))[kind], prefix)
    switch.fail(ERRORS[0])
    time.sleep(4.0)  # two leases
    checker = RedisChecker(redis_url, prefix=prefix, lease_s=2.0)
    other = Registry().consumer("orders", checker=checker)(lambda _: None)
    for name in busy.held:
        assert other.process(Message("orders", id=name)).outcome is Outcome.IN_PROGRESS
    assert busy.finish() == {Outcome.PROCESSED}
