"""StompAdapter over TLS."""

import secrets
import time

import psutil
import pytest

from idempotent import Message, Outcome, Result
from idempotent.errors import AdapterError
from tests.adapters.activemq.member import confirmed, receive
from tests.adapters.activemq.opening import ACK, opened
from tests.adapters.activemq.stomp_client import in_queue
from tests.support.services import PrivateActiveMq


@pytest.mark.slow
def test_over_tls_everything_works_as_without(spare, name):
    server = spare(PrivateActiveMq, "tls")
    body = secrets.token_bytes(300_000)
    with opened(server.tls_url, name, ca_file=str(server.ca_file)) as adapter:
        adapter.publish(Message(name, body, id="a"))
        (delivery,) = receive(adapter, 1)
        assert delivery.message.body == body
        adapter.settle(delivery, Result(Outcome.FAILED, retry_after_s=0.2))
        confirmed(adapter)
        (again,) = receive(adapter, 1)
        adapter.settle(again, Result(Outcome.DEAD))
        confirmed(adapter)
    assert [letter.body for letter in in_queue(server.url, f"/queue/{name}.dead")] == [body]


@pytest.mark.slow
def test_the_end_of_an_encrypted_connection_is_noticed_at_once_and_costs_no_processor(spare, name):
    server = spare(PrivateActiveMq, "tls")
    with opened(server.tls_url, name, ca_file=str(server.ca_file), heartbeat_s=60.0) as adapter:
        adapter.publish(Message(name, id="a"))
        (old,) = receive(adapter, 1)
        server.kill()
        deadline = time.monotonic() + 20.0  # a third of a heartbeat
        while adapter._epoch is not None and time.monotonic() < deadline:
            adapter.receive(1, 0.05)
        assert adapter._epoch is None
        before = psutil.Process().cpu_times().user
        adapter.receive(1, 1.0)
        assert psutil.Process().cpu_times().user - before < 0.7
        server.start()
        (again,) = receive(adapter, 1)
        assert again.message.id == "a"
        adapter.settle(old, ACK)
        assert adapter.stale_settlements == 1


@pytest.mark.slow
@pytest.mark.parametrize("subjects", [(), ("orders",)], ids=["only publishes", "consumes"])
def test_an_untrusted_certificate_stops_what_was_never_connected(spare, subjects):
    server = spare(PrivateActiveMq, "tls")
    with (
        opened(server.tls_url, *subjects) as adapter,
        pytest.raises(AdapterError, match=r"not trusted: check ca_file .*certificate verify failed"),
    ):
        adapter.receive(1, 20.0)


@pytest.mark.slow
def test_a_mismatch_of_encryption_is_an_error_that_says_so(spare, name):
    server = spare(PrivateActiveMq, "tls")
    with (
        pytest.raises(AdapterError, match="certificate verify failed"),
        opened(server.tls_url, name, fail_fast=True),
    ):
        pass
    plain_port = server.url.replace("stomp:", "stomp+ssl:")
    with (
        pytest.raises(AdapterError, match="cannot connect to stomp"),
        opened(plain_port, name, fail_fast=True, connect_timeout_s=2.0),
    ):
        pass
    tls_port = server.tls_url.replace("stomp+ssl:", "stomp:")
    with (
        pytest.raises(AdapterError, match="cannot connect to stomp"),
        opened(tls_port, name, fail_fast=True, connect_timeout_s=2.0),
    ):
        pass
