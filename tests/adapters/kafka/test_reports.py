"""What librdkafka reports: the callbacks of the application, and errors that end a client."""

from collections import Counter

import pytest

from idempotent.adapters.kafka import KafkaAdapter
from idempotent.errors import ConfigurationError
from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.member import ACK, receive, send
from tests.adapters.kafka.through_proxy import through_proxy
from tests.support.logs import logged


@pytest.mark.parametrize("place", ["client_config", "consumer_config"])
def test_the_applications_callbacks_are_called_beside_the_adapters_own(broker, topic, opened, caplog, place):
    called = Counter()

    def failing(name):
        def callback(*_):
            called[name] += 1
            raise ZeroDivisionError(f"in {name}")

        return callback

    names = ("error_cb", "stats_cb", "on_commit") if place == "consumer_config" else ("error_cb", "stats_cb")
    own = {"reconnect.backoff.max.ms": 200, **{name: failing(name) for name in names}}
    send(broker, topic, 5)
    quick = {"ordering": "none", "commit_interval_s": 0.1}
    with through_proxy(broker) as (proxy, bootstrap):
        adapter = opened(topic, group=topic, bootstrap=bootstrap, **quick, **{place: own})
        for delivery in receive(adapter, 3):
            adapter.settle(delivery, ACK)
        until(lambda: adapter.receive(0, 0.1) or broker.committed(topic, topic) == 3, "a commit")
        adapter.receive(0, 0.1)
        proxy.refuse()
        proxy.cut()
        until(lambda: adapter.receive(0, 0.1) or not adapter.connected, "the outage")
        proxy.recover()
        until(lambda: adapter.receive(0, 0.1) or adapter.connected, "its end")
        until(lambda: adapter.receive(0, 0.1) or set(called) == set(names), "each callback")
        adapter.close()
    failures = logged(caplog, "callback_failed")
    assert {record.callback for record in failures} == set(names)
    assert all("ZeroDivisionError" in record.exc_text for record in failures)


@pytest.mark.slow
def test_a_publisher_calls_the_applications_callbacks_too(broker, topic):
    called = Counter()
    own = {"stats_cb": lambda _: called.update(["stats"]), "error_cb": lambda _: called.update(["error"])}
    with through_proxy(broker) as (proxy, bootstrap):
        adapter = KafkaAdapter(bootstrap, client_config={**own, "reconnect.backoff.max.ms": 200})
        adapter.open([])
        try:
            until(lambda: adapter.receive(1, 0.1) or adapter.connected, "a connection")
            proxy.refuse()
            proxy.cut()
            until(lambda: adapter.receive(1, 0.1) or not adapter.connected, "the outage")
            proxy.recover()
            until(lambda: adapter.receive(1, 0.1) or adapter.connected, "its end")
        finally:
            adapter.close()
    assert set(called) == {"stats", "error"}


@pytest.mark.parametrize("interval_ms", [0, 3_600_000])
def test_statistics_come_often_enough_for_the_adapter(broker, topic, opened, interval_ms):
    called = []
    own = {"stats_cb": called.append, "statistics.interval.ms": interval_ms}
    adapter = opened(topic, group=topic, consumer_config=own)
    until(lambda: adapter.receive(0, 0.1) or called, "statistics")


@pytest.mark.parametrize("setting", ["on_delivery", "delivery.report.only.error"])
@pytest.mark.parametrize("place", ["client_config", "producer_config"])
def test_what_would_take_the_brokers_confirmations_is_refused(place, setting):
    with pytest.raises(ConfigurationError, match=f"{place}: {setting} .*confirm"):
        KafkaAdapter("localhost:9092", **{place: {setting: True}})
