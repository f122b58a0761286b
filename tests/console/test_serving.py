"""The console's server: requests that do not come in full, browsers that go away, and a port that is taken."""

import logging
import socket
import threading
import time
from contextlib import suppress

import pytest

from idempotent.checkers import MemoryChecker
from idempotent.console import serve
from idempotent.console.guard import Access
from idempotent.console.serve import listening
from idempotent.errors import ConfigurationError
from tests.console.browser import TOKEN
from tests.console.served import DEADLINE_S, served

HEAD = "POST /login HTTP/1.1\r\nHost: {}\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n"
GET = "GET /login HTTP/1.1\r\nHost: {}\r\n\r\n"
SHORT_S = 2.0


@pytest.fixture
def address(monkeypatch):
    monkeypatch.setattr(serve, "_REQUEST_S", SHORT_S)
    with served(checker=MemoryChecker()) as where:
        yield where.removeprefix("http://")


def connected(address):
    host, _, port = address.partition(":")
    return socket.create_connection((host, int(port)), timeout=DEADLINE_S)


def answer_of(connection, until=b"</html>"):
    answer = b""
    while until not in answer:
        part = connection.recv(65536)
        assert part, answer
        answer += part
    return answer


def ends(connection):
    """Whether the server ends it, in time for this test. It raises TimeoutError if not."""
    with suppress(ConnectionResetError):
        while connection.recv(65536):
            pass
    return True


def sent_slowly(connection):
    """A byte of the hundred every tenth of a second, until nobody takes it."""
    with suppress(OSError):
        for _ in range(90):
            connection.sendall(b"a")
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("before", "begun"),
    [
        ("", ""),
        ("", "GET /login HTTP/1.1\r\nHost: {}\r\n"),
        ("", HEAD + "\r\nname=al"),
        (GET, "GET / HT"),
        (GET, HEAD + "\r\n"),
    ],
    ids=["nothing", "half a head", "half a body", "a second half a line", "a second without its body"],
)
def test_a_request_that_does_not_come_in_full_ends(address, before, begun):
    with connected(address) as connection:
        if before:
            connection.sendall(before.format(address).encode())
            assert b"200 OK" in answer_of(connection)
        connection.sendall(begun.format(address).encode())
        assert ends(connection)


def test_one_that_trickles_in_ends_too(address):
    with connected(address) as connection:
        connection.sendall((HEAD + "\r\n").format(address).encode())
        trickle = threading.Thread(target=sent_slowly, args=(connection,))
        trickle.start()
        assert ends(connection)
        trickle.join(DEADLINE_S)


def test_a_browser_may_keep_its_connection_for_longer(address):
    with connected(address) as connection:
        for _ in range(3):
            connection.sendall(GET.format(address).encode())
            assert b"200 OK" in answer_of(connection)
            time.sleep(0.4 * SHORT_S)


def test_a_browser_that_goes_away_leaves_no_traceback(address, caplog):
    with connected(address) as connection:
        connection.sendall((HEAD + "\r\nname=al").format(address).encode())
        time.sleep(0.1)
    with connected(address) as connection:
        connection.sendall(GET.format(address).encode())
        assert b"200 OK" in answer_of(connection)
    time.sleep(0.2)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_a_port_that_another_program_has_is_named():
    with listening(Access("127.0.0.1", 0, TOKEN)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"cannot listen on .*, port {port}: .*in use"):
            listening(Access("127.0.0.1", port, TOKEN))
    with pytest.raises(ConfigurationError, match=r"cannot listen on 192\.0\.2\.1"):
        listening(Access("192.0.2.1", 8765, TOKEN))
