"""What StompAdapter refuses, and what it does when its broker refuses: credentials, rights, input."""

import logging

import pytest

from idempotent import Message, Outcome, Result
from idempotent.adapters import adapter_from_url
from idempotent.adapters.activemq import StompAdapter
from idempotent.errors import AdapterError, ConfigurationError
from tests.adapters.activemq.member import ids, receive, send, work_until
from tests.adapters.activemq.opening import one_consumer, opened, with_user
from tests.adapters.activemq.stomp_client import client, in_queue
from tests.support.services import PrivateActiveMq
from tests.support.services.activemq import MAX_FRAME_BYTES, PASSWORD


def test_with_fail_fast_a_missing_broker_is_an_error_without_credentials(spare, name):
    server = spare(PrivateActiveMq)
    server.stop()
    with (
        pytest.raises(AdapterError, match=r"cannot connect to stomp://127.0.0.1:\d+: .*refused") as raised,
        opened(with_user(server.url), name, fail_fast=True),
    ):
        pass
    assert PASSWORD not in str(raised.value)


@pytest.mark.slow
def test_a_client_id_that_is_taken_is_waited_for(spare, name):
    server = spare(PrivateActiveMq)
    with opened(server.url, name, client_id=name) as adapter:
        adapter.receive(1, 1.0)
        with opened(server.url, name, client_id=name) as second:
            assert second.receive(1, 0.5) == []
            adapter.close()
            send(server.url, name, "a")
            assert ids(receive(second, 1)) == ["a"]


def test_a_wrong_password_stops_the_worker_and_is_told_to_nobody(spare, name, caplog):
    server = spare(PrivateActiveMq, "accounts")
    caplog.set_level(logging.DEBUG)
    with pytest.raises(AdapterError, match="wrong user name or password") as raised:
        work_until(one_consumer(name), with_user(server.url, "wr%40ng-s3cret"), lambda: False)
    assert "s3cret" not in str(raised.value) + repr(raised.value.__cause__)
    assert "s3cret" not in caplog.text
    with opened(with_user(server.url), name) as adapter:
        adapter.publish(Message(name, id="a"))
        assert ids(receive(adapter, 1)) == ["a"]
        assert PASSWORD not in repr(adapter._settings)
    assert PASSWORD not in caplog.text


def test_a_subject_that_may_not_be_read_stops_the_worker(spare):
    server = spare(PrivateActiveMq, "accounts")
    with pytest.raises(AdapterError, match="wrong user name or password"):
        work_until(one_consumer("orders"), server.url, lambda: False)


@pytest.mark.parametrize("ack", ["individual", "client", "transacted"])
def test_where_the_dead_letter_is_refused_the_original_stays(spare, name, ack):
    server = spare(PrivateActiveMq, "accounts")
    root = {"login": "root", "passcode": PASSWORD}
    with client(server.url, **root) as sender:
        sender.publish(f"/queue/{name}", b"x", {"x-idempotent-key": "a"})
    with opened(with_user(server.url), name, ack=ack, dead_letter_destination="locked.graves") as adapter:
        (delivery,) = receive(adapter, 1)
        with pytest.raises(AdapterError, match=r"not authorized to write to: queue://locked.graves"):
            adapter.settle(delivery, Result(Outcome.DEAD))
    assert [message.id for message in in_queue(server.url, f"/queue/{name}", **root)] == ["a"]
    assert in_queue(server.url, "/queue/locked.graves", **root) == []


def test_a_body_that_the_broker_does_not_take_is_an_error_and_the_next_one_goes_through(spare, name):
    server = spare(PrivateActiveMq)
    with opened(server.url, name) as adapter:
        with pytest.raises(AdapterError, match=r"did not confirm a message|refused"):
            adapter.publish(Message(name, bytes(2 * MAX_FRAME_BYTES), id="big"))
        adapter.publish(Message(name, bytes(MAX_FRAME_BYTES // 2), id="small"))
        assert ids(receive(adapter, 1)) == ["small"]


@pytest.mark.parametrize(
    ("url", "options", "match"),
    [
        ("stomp://", {}, "looks like"),
        ("http://host", {}, "looks like"),
        ("stomp://user:s3cret@host/path", {}, "looks like"),
        ("stomp://user:s3cret@host:99999", {}, "up to 65535"),
        ("stomp://user:s3%0Acret@host", {}, "line breaks"),
        ("stomp://host", {"ca_file": "x"}, r"needs a stomp\+ssl"),
        ("stomp+ssl://host", {"ca_file": "/nowhere"}, "no such file"),
        ("stomp+ssl://host", {"ca_file": __file__}, "cannot read the certificates in"),
        (
            "stomp://host",
            {"ack": "never"},
            "ack must be one of 'auto', 'client', 'dups_ok', 'transacted', 'individual'",
        ),
        ("stomp://host", {"prefetch": 0}, "at least 1"),
        ("stomp://host", {"heartbeat_s": 0}, "heartbeat_s must be positive"),
        ("stomp://host", {"optimize_acknowledge": True}, 'needs ack="auto"'),
    ],
)
def test_what_cannot_work_is_said_at_once_and_without_the_password(url, options, match):
    with pytest.raises(ConfigurationError, match=match) as raised:
        StompAdapter(url, **options)
    assert "s3" not in str(raised.value)


def test_an_unknown_option_of_a_url_is_named():
    with pytest.raises(ConfigurationError, match="unknown option 'prefetched'"):
        adapter_from_url("stomp://host?prefetched=1")
