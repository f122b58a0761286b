"""Options, URLs, and what they may not say."""

import secrets
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from idempotent import Message, Registry
from idempotent.adapters import adapter_from_url
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.checkers import MemoryChecker
from idempotent.errors import AdapterError, ConfigurationError
from tests.adapters.kafka.member import nothing, nothing_comes, receive
from tests.support.logs import logged


def test_all_clients_of_a_consumer_log_in_as_it_does():
    asked = []

    def token(_):
        asked.append(1)
        return "header.payload.", time.time() + 3600

    adapter = logging_in_with({"oauth_cb": token})
    try:
        adapter.open([Registry().consumer("orders", group="g", checker=MemoryChecker())(nothing)])
        assert len(asked) == 2, "the one that asks for the ids of topics has no token"
    finally:
        adapter.close()


def test_a_provider_of_tokens_that_is_away_at_the_start_is_waited_for(caplog):
    away = "http://127.0.0.1:1/token"
    adapter = logging_in_with(
        {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": "word",
            "sasl.oauthbearer.token.endpoint.url": away,
        }
    )
    try:
        adapter.open([Registry().consumer("orders", group="g", checker=MemoryChecker())(nothing)])
        nothing_comes(adapter, 1.0)
        (line,) = logged(caplog, "broker_unreachable")
        assert "Failed to acquire SASL OAUTHBEARER token: Failed to connect to 127.0.0.1:1" in line.error
        assert "sasl_password" not in line.error
    finally:
        adapter.close()


@pytest.mark.slow
def test_a_token_that_a_callback_does_not_give_is_no_fault_of_the_settings():
    def token(_):
        raise ConnectionError("the provider is away")

    adapter = logging_in_with({"oauth_cb": token})
    with pytest.raises(
        AdapterError, match="oauth_cb gives no token: ConnectionError: the provider is away"
    ) as e:
        adapter.open([Registry().consumer("orders", group="g", checker=MemoryChecker())(nothing)])
    assert not isinstance(e.value, ConfigurationError)


def logging_in_with(config):
    return KafkaAdapter(
        "127.0.0.1:1",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        consumer_config=config,
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"consumer_config": {"enable.auto.commit": True}}, "enable.auto.commit must stay off"),
        ({"consumer_config": {"enable.auto.offset.store": "true"}}, "must stay off"),
        ({"consumer_config": {"group.id": "x"}}, "the consumers' group"),
        ({"producer_config": {"acks": 1}}, "given by acks="),
        ({"acks": 2}, "acks must be"),
        ({"acks": 1, "idempotent_producer": True}, "needs acks='all'"),
        (
            {"semantics": "twice"},
            "'at_least_once', 'at_most_once', 'effectively_once', 'exactly_once', not 'twice'",
        ),
        ({"semantics": "at_most_once", "ordering": "key"}, "goes with the orderings"),
        ({"retry_topic": True}, "ordering='none' alone"),
        ({"ordering": "random"}, "'partition', 'key', 'none'"),
        ({"max_in_flight_per_partition": 0}, "at least 1"),
        ({"commit_interval_s": 0}, "above 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(options, words):
    with pytest.raises(ConfigurationError, match=words):
        KafkaAdapter("localhost:9092", **options)


def test_a_setting_that_librdkafka_does_not_know_is_refused_without_the_password(opened):
    with pytest.raises(ConfigurationError, match=r'No such configuration property: "no\.such"') as caught:
        opened("orders", sasl_username="me", sasl_password="secret", consumer_config={"no.such": 1})
    assert "secret" not in str(caught.value)


def test_a_url_names_brokers_credentials_and_options():
    adapter = adapter_from_url("kafka://me:p%40ss@one:9092,two:9093?ordering=key&commit_every=5&acks=1")
    assert isinstance(adapter, KafkaAdapter)
    assert adapter._security == {
        "bootstrap.servers": "one:9092,two:9093",
        "log_level": 2,
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "p@ss",
    }
    assert (adapter._limits.ordering.value, adapter._commit_every) == ("key", 5)
    for url in ("kafka://", "kafka://host/topic", "kafka://host?colour=red"):
        with pytest.raises(ConfigurationError):
            adapter_from_url(url)


@pytest.mark.parametrize("acks", ["all", 1, 0])
def test_published_messages_arrive_whatever_is_waited_for(broker, topic, opened, acks):
    adapter = opened(topic, acks=acks)
    adapter.publish(Message(topic, b"7", id="m-1"))
    (delivery,) = receive(adapter)
    assert (delivery.message.id, delivery.message.raw.key()) == ("m-1", b"m-1")


@pytest.mark.parametrize(
    ("key", "record_key"),
    [("customer", b"customer"), (b"\xff", b"\xff"), ("", b""), (None, b"m-1")],
    ids=["text", "bytes", "empty", "none"],
)
def test_the_key_of_a_message_is_its_records_key_and_without_one_its_id(
    broker, topic, opened, key, record_key
):
    adapter = opened(topic, ordering="none")
    adapter.publish(Message(topic, b"7", id="m-1", key=key))
    (delivery,) = receive(adapter)
    message = delivery.message
    assert (message.id, message.key, message.raw.key()) == ("m-1", record_key, record_key)
    adapter.publish(replace(message, raw=None, id="m-2"))
    (again,) = receive(adapter)
    assert (again.message.id, again.message.key) == ("m-2", record_key)


def test_a_message_without_a_body_is_a_null_value_and_not_an_empty_one(broker, topic, opened):
    adapter = opened(topic, ordering="none")
    adapter.publish_many([Message(topic, None, id="m-1"), Message(topic, b"", id="m-2")])
    assert [raw.value() for raw in broker.read_raw(topic)] == [None, b""]
    assert [delivery.message.body for delivery in receive(adapter, 2)] == [None, b""]


def test_a_record_without_a_key_is_a_message_without_one(broker, topic, opened):
    broker.produce(topic, b"7", None, [])
    (delivery,) = receive(opened(topic))
    assert delivery.message.key is None


@pytest.mark.slow
def test_a_key_goes_where_javas_clients_send_it_if_asked(broker, opened):
    # Key and murmur2 from the tests of Kafka's own client.
    hashes = {
        "21": -973932308,
        "foobar": -790332482,
        "a-little-bit-long-string": -985981536,
        "abc": 479470107,
    }
    topic = f"orders-{secrets.token_hex(6)}"
    broker.make(topic, 7)
    adapter = opened(topic, producer_config={"partitioner": "murmur2_random"})
    adapter.publish_many([Message(topic, id=key) for key in hashes])
    found = {raw.key().decode(): raw.partition() for raw in broker.read_raw(topic)}
    assert found == {key: (value & 0x7FFFFFFF) % 7 for key, value in hashes.items()}


def test_without_the_client_library_the_error_says_what_to_type():
    code = "import sys; sys.modules['confluent_kafka'] = None; import idempotent.adapters.kafka"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert 'pip install "idempotent-consumer[kafka]"' in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("subject", ["^orders.*", "orders/paid", "orders paid", "orders\n", ".."])
def test_a_subject_that_no_topic_can_have_is_refused(opened, subject):
    with pytest.raises(ConfigurationError, match="cannot be a topic"):
        opened(subject)


def test_a_group_whose_retry_topic_cannot_exist_is_refused(opened):
    with pytest.raises(ConfigurationError, match=r"'orders\.my group\.retry' cannot be a topic"):
        opened("orders", group="my group", ordering="none", retry_topic=True)


def test_the_end_of_a_partition_is_no_warning_where_it_is_asked_for(broker, topic, opened, caplog):
    broker.send(topic, b"1")
    broker.flush()
    adapter = opened(topic, consumer_config={"enable.partition.eof": True})
    receive(adapter)
    nothing_comes(adapter, 0.5)
    assert not logged(caplog, "kafka_waits")
