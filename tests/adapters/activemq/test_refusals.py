"""What StompAdapter refuses, and what it does when its broker refuses: credentials, rights, input."""

import logging

import pytest

from idempotent import Message, Outcome, Result
from idempotent.adapters import adapter_from_url
from idempotent.adapters.activemq import StompAdapter
from idempotent.errors import AdapterError, ConfigurationError, PublishError
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


def test_a_wrong_password_is_an_error_of_the_first_receive_that_only_publishes(spare):
    server = spare(PrivateActiveMq, "accounts")
    with (
        opened(with_user(server.url, "wr0ng")) as adapter,
        pytest.raises(AdapterError, match="wrong user name or password"),
    ):
        adapter.receive(1, 20.0)


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
            (adapter.settle(delivery, Result(Outcome.DEAD)), adapter.receive(1, 20.0))
    assert [message.id for message in in_queue(server.url, f"/queue/{name}", **root)] == ["a"]
    assert in_queue(server.url, "/queue/locked.graves", **root) == []


def test_a_body_that_the_broker_does_not_take_is_an_error_and_the_next_one_goes_through(spare, name):
    server = spare(PrivateActiveMq)
    with opened(server.url, name) as adapter:
        with pytest.raises(AdapterError, match=r"did not confirm a message|refused"):
            adapter.publish(Message(name, bytes(2 * MAX_FRAME_BYTES), id="big"))
        adapter.publish(Message(name, bytes(MAX_FRAME_BYTES // 2), id="small"))
        assert ids(receive(adapter, 1)) == ["small"]


@pytest.mark.parametrize("count", [1, 130])
def test_of_messages_published_together_the_forbidden_ones_are_named_and_each_other_arrives_once(
    spare, name, count, monkeypatch
):
    monkeypatch.setattr("idempotent.adapters.activemq.adapter._TRANSACTION", 50)
    server = spare(PrivateActiveMq, "accounts")
    good = [Message(name, b"x", id=str(number)) for number in range(count)]
    locked = Message("locked.graves", id="locked")
    with opened(with_user(server.url)) as adapter:
        with pytest.raises(PublishError, match=r"'locked'.*not authorized") as raised:
            adapter.publish_many([locked, *good, locked])
        assert (set(raised.value.refused), raised.value.unknown) == ({0, count + 1}, {})
    root = {"login": "root", "passcode": PASSWORD}
    seen = [message.id for message in in_queue(server.url, f"/queue/{name}", **root)]
    assert seen == [message.id for message in good]
    assert in_queue(server.url, "/queue/locked.graves", **root) == []


def test_a_body_that_ends_the_connection_takes_no_other_message_with_it(spare, name):
    server = spare(PrivateActiveMq)
    small = [Message(name, b"x", id=str(number)) for number in range(3)]
    with opened(server.url) as adapter:
        with pytest.raises(PublishError) as raised:
            adapter.publish_many([small[0], Message(name, bytes(2 * MAX_FRAME_BYTES), id="big"), *small[1:]])
        # The broker's last words may be lost with the connection.
        assert {*raised.value.refused, *raised.value.unknown} == {1}
    assert [message.id for message in in_queue(server.url, f"/queue/{name}")] == ["0", "1", "2"]


def test_a_header_without_a_name_is_refused_and_takes_no_other_message_with_it(spare, name):
    server = spare(PrivateActiveMq)
    nameless = Message(name, b"x", id="nameless", headers={"": "x"})
    with opened(server.url) as adapter:
        adapter.publish(Message(name, b"x", id="0"))
        connection = adapter._line.connection
        with pytest.raises(PublishError, match="a header whose name is empty") as raised:
            adapter.publish_many([nameless, Message(name, b"x", id="1")])
        assert (set(raised.value.refused), raised.value.unknown) == ({0}, {})
        assert adapter._line.connection is connection, "the broker does not hang up"
    assert [message.id for message in in_queue(server.url, f"/queue/{name}")] == ["0", "1"]


@pytest.mark.parametrize(
    "value", ["x" * 10_300, "\n" * 5_150, "\U0001f600" * 2_600], ids=["long", "escaped", "wide"]
)
def test_a_long_header_is_refused_and_its_body_is_not_read_as_frames(spare, name, value):
    server = spare(PrivateActiveMq)
    body = f"\0SEND\ndestination:/queue/{name}_evil\n\ninjected\0".encode()
    with opened(server.url) as adapter:
        adapter.publish(Message(name, b"x", id="0", headers={"fits": "y" * 10_000}))
        with pytest.raises(PublishError, match="'long' has 10,") as raised:
            adapter.publish_many(
                [Message(name, body, id="1", headers={"long": value}), Message(name, b"x", id="2")]
            )
        assert (set(raised.value.refused), raised.value.unknown) == ({0}, {})
    assert [message.id for message in in_queue(server.url, f"/queue/{name}")] == ["0", "2"]
    assert in_queue(server.url, f"/queue/{name}_evil") == []


def test_messages_that_a_silent_broker_does_not_confirm_are_unknown(spare, name):
    server = spare(PrivateActiveMq)
    with opened(server.url, receipt_timeout_s=0.5, connect_timeout_s=1.0) as adapter:
        adapter.publish(Message(name, id="0"))
        server.pause()
        try:
            with pytest.raises(PublishError) as raised:
                adapter.publish_many(
                    [Message(name, id="1"), Message(name, id=b"\xff"), Message(name, id="2")]
                )
        finally:
            server.resume()
        assert (set(raised.value.unknown), set(raised.value.refused)) == ({0, 2}, {1})


@pytest.mark.parametrize(
    ("url", "options", "match"),
    [
        ("stomp://", {}, "looks like"),
        ("http://host", {}, "looks like"),
        ("stomp://user:s3cret@host/path", {}, "looks like"),
        ("stomp://user:s3cret@host:99999", {}, "up to 65535"),
        ("stomp://user:s3c%0Aret@host", {}, "line breaks"),
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
    assert "s3c" not in str(raised.value)


def test_an_unknown_option_of_a_url_is_named():
    with pytest.raises(ConfigurationError, match="unknown option 'prefetched'"):
        adapter_from_url("stomp://host?prefetched=1")
