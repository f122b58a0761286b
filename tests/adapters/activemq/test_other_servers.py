"""Servers that are no ActiveMQ Classic, or say nothing."""

import socket
import threading
import time
from contextlib import contextmanager

import pytest

from idempotent.errors import AdapterError
from tests.adapters.activemq.member import work_until
from tests.adapters.activemq.opening import one_consumer, opened


@contextmanager
def server_that_answers(answer):
    """A server that reads one frame and answers so."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)
                connection.settimeout(5.0)
                try:
                    connection.recv(1)
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"stomp://127.0.0.1:{listening.getsockname()[1]}"
        thread.join(10.0)


# What Artemis greets with: its server header is all that tells it apart.
ARTEMIS = (
    b"CONNECTED\nversion:1.2\nsession:6ae3b7f4\n"
    b"server:ActiveMQ-Artemis/2.31.2 ActiveMQ Artemis Messaging Engine\nheart-beat:0,0\n\n\0\n"
)


def test_artemis_is_refused_because_its_ids_and_transactions_do_not_hold(name):
    with (
        server_that_answers(ARTEMIS) as url,
        pytest.raises(AdapterError, match=r"ActiveMQ-Artemis/2\.31.*supports ActiveMQ Classic"),
    ):
        work_until(one_consumer(name), url, lambda: False)


def test_a_server_of_an_older_protocol_is_refused(name):
    with (
        server_that_answers(b"CONNECTED\nversion:1.0\n\n\0") as url,
        pytest.raises(AdapterError, match=r"does not speak STOMP 1\.2"),
    ):
        work_until(one_consumer(name), url, lambda: False)


def test_a_server_that_says_nothing_is_given_up_in_time(name):
    with server_that_answers(b"") as url:
        began = time.monotonic()
        with (
            pytest.raises(AdapterError, match="cannot connect"),
            opened(url, name, fail_fast=True, connect_timeout_s=0.5),
        ):
            pass
        assert time.monotonic() - began < 5.0
