"""KafkaAdapter and brokers that want to know who is there, in an encrypted conversation."""

import logging
import time

import pytest

from idempotent import Message, Outcome, Registry, Result
from idempotent.adapters import adapter_from_url
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.adapters.kafka import brokers as kafka_brokers
from idempotent.adapters.kafka.client import KafkaError, is_for_good, why_unreachable
from idempotent.checkers import MemoryChecker
from idempotent.errors import AdapterError, PublishError
from idempotent.testing.adapter_contract import AdapterContract, until
from tests.adapters.kafka.broker import Broker
from tests.support.services import PrivateKafka
from tests.support.services.kafka import PASSWORD, USER

SECRET = "wr0ng-s3cret"
receive = AdapterContract.receive
nothing_comes = AdapterContract.nothing_comes


@pytest.fixture
def kafka(spare):
    return spare(PrivateKafka, "secured")


@pytest.fixture
def opened():
    """`opened(adapter)` is closed after the test."""
    adapters = []

    def open_(adapter, topic="orders"):
        adapters.append(adapter)
        adapter.open([Registry().consumer(topic, group="billing", checker=MemoryChecker())(lambda _: None)])
        return adapter

    yield open_
    for adapter in adapters:
        adapter.close()


def works(adapter, kafka, topic):
    broker = Broker(kafka.url)
    broker.make(f"{topic}.dlq")
    adapter.publish(Message(topic, b"paid", id="1"))
    (delivery,) = receive(adapter)
    adapter.settle(delivery, Result(Outcome.DEAD, error=ValueError("no")))
    until(lambda: (nothing_comes(adapter, 0.1), broker.read(f"{topic}.dlq"))[1], "a dead letter")
    return delivery.message.body == b"paid"


@pytest.mark.slow
def test_with_user_password_and_certificate_everything_works(kafka, opened):
    url = f"kafka://{USER}:{PASSWORD}@{kafka.sasl_url}?ssl_ca_location={kafka.ca_file}"
    Broker(kafka.url).make("with-a-password")
    assert works(opened(adapter_from_url(url), "with-a-password"), kafka, "with-a-password")


def test_without_a_user_but_encrypted_everything_works(kafka, opened):
    adapter = KafkaAdapter(kafka.tls_url, security_protocol="SSL", ssl_ca_location=str(kafka.ca_file))
    Broker(kafka.url).make("encrypted")
    assert works(opened(adapter, "encrypted"), kafka, "encrypted")


@pytest.mark.parametrize("fail_fast", [False, True], ids=["patient", "fail_fast"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sasl_username": USER, "sasl_password": SECRET}, "Authentication failed|Invalid username"),
        ({"sasl_username": "nobody", "sasl_password": SECRET}, "Authentication failed|Invalid username"),
        ({"sasl_username": USER, "sasl_password": SECRET, "ssl_ca_location": None}, "certificate"),
    ],
    ids=["wrong password", "unknown user", "untrusted certificate"],
)
def test_what_no_waiting_mends_stops_and_says_why(kafka, opened, caplog, options, words, fail_fast):
    caplog.set_level(logging.DEBUG)
    options = {"ssl_ca_location": str(kafka.ca_file), "fail_fast": fail_fast, **options}
    with pytest.raises(AdapterError, match=words) as raised:
        receive(opened(KafkaAdapter(kafka.sasl_url, **options)))
    assert SECRET not in str(raised.value) + caplog.text


WRONG = pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sasl_password": SECRET}, "check sasl_username, sasl_password"),
        ({"ssl_ca_location": None}, "check ssl_ca_location"),
    ],
    ids=["wrong password", "untrusted certificate"],
)


def publisher(kafka, **options):
    login = {"sasl_username": USER, "sasl_password": PASSWORD, "ssl_ca_location": str(kafka.ca_file)}
    return KafkaAdapter(kafka.sasl_url, **{**login, **options})


@WRONG
def test_an_adapter_that_only_publishes_stops_at_it_too(kafka, caplog, options, words):
    caplog.set_level(logging.DEBUG)
    adapter = publisher(kafka, publish_timeout_s=1.0, **options)
    adapter.open([])
    with pytest.raises(AdapterError, match=f"Kafka at .*: .*{words}") as raised:
        adapter.receive(1, 20.0)
    with pytest.raises(PublishError) as unsent:
        adapter.publish(Message("orders", id="1"))
    adapter.close()
    assert unsent.value.refused == {}
    assert words in unsent.value.unknown[0]
    assert SECRET not in f"{raised.value}{unsent.value}{caplog.text}"


@WRONG
def test_with_fail_fast_it_does_not_even_open(kafka, options, words):
    with pytest.raises(AdapterError, match=f"cannot connect to Kafka at .*: .*{words}"):
        publisher(kafka, fail_fast=True, **options).open([])


def test_a_publisher_that_is_let_in_goes_on(kafka):
    adapter = publisher(kafka)
    adapter.open([])
    until(lambda: (adapter.receive(1, 0.1), adapter.connected)[1], "a connection")
    Broker(kafka.url).make("only-published")
    adapter.publish(Message("only-published", id="1"))
    adapter.close()
    assert [message.id for message in Broker(kafka.url).read("only-published")] == ["1"]


@pytest.mark.parametrize(
    ("door", "protocol", "words"),
    [("tls_url", "PLAINTEXT", "security_protocol"), ("url", "SSL", "PLAINTEXT")],
    ids=["plain at a TLS port", "TLS at a plain port"],
)
def test_a_mismatch_of_encryption_is_in_what_a_publisher_says(kafka, caplog, door, protocol, words):
    adapter = KafkaAdapter(getattr(kafka, door), security_protocol=protocol, publish_timeout_s=1.0)
    adapter.open([])
    try:
        until(lambda: (adapter.receive(1, 0.1), any(words in text for text in said_in(caplog)))[1], "why")
        with pytest.raises(PublishError) as raised:
            adapter.publish(Message("orders", id="1"))
    finally:
        adapter.close()
    assert words in raised.value.unknown[0]


@pytest.mark.slow
@pytest.mark.parametrize("fail_fast", [False, True], ids=["patient", "fail_fast"])
@pytest.mark.parametrize(
    ("door", "protocol", "words"),
    [("tls_url", "PLAINTEXT", "security_protocol"), ("url", "SSL", "PLAINTEXT")],
    ids=["plain at a TLS port", "TLS at a plain port"],
)
def test_a_mismatch_of_encryption_is_explained(
    kafka, opened, caplog, monkeypatch, door, protocol, words, fail_fast
):
    monkeypatch.setattr(kafka_brokers, "_ANSWER_S", 5.0)
    ca_file = {"ssl_ca_location": str(kafka.ca_file)} if protocol == "SSL" else {}
    adapter = KafkaAdapter(getattr(kafka, door), security_protocol=protocol, fail_fast=fail_fast, **ca_file)
    if fail_fast:
        with pytest.raises(AdapterError, match=f"cannot connect to Kafka at .*{words}"):
            opened(adapter)
        return
    with caplog.at_level(logging.WARNING):
        opened(adapter)
        deadline = time.monotonic() + 60
        while not any(words in text or "security_protocol" in text for text in said_in(caplog)):
            assert time.monotonic() < deadline, said_in(caplog)
            nothing_comes(adapter, 1.0)
    assert not adapter.connected


def said_in(caplog):
    return [getattr(record, "error", "") for record in caplog.records]


@pytest.mark.parametrize("code", [KafkaError._SSL, KafkaError._TRANSPORT])
def test_a_certificate_is_named_however_the_library_says_it(code):
    said = "error:0A000086:SSL routines::certificate verify failed (after 14ms in state SSL_HANDSHAKE)"
    assert why_unreachable(KafkaError(code, said)).endswith("check ssl_ca_location and the host name")
    assert is_for_good(KafkaError(code, said))


@pytest.mark.parametrize(
    "said",
    [
        "Disconnected: SSL connection closed by peer (after 1ms in state SSL_HANDSHAKE)",
        "SSL handshake failed: connecting to a PLAINTEXT broker listener? (after 2ms in state SSL_HANDSHAKE)",
    ],
)
def test_a_port_without_tls_is_guessed_however_the_handshake_ends(said):
    assert why_unreachable(KafkaError(KafkaError._SSL, said)).count("PLAINTEXT") == 1
