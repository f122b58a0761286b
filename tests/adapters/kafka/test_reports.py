"""What librdkafka reports: the callbacks of the application, and errors that end a client."""

import threading
from collections import Counter

import pytest

from idempotent import Message, Outcome, Registry, Result, Worker
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.checkers import AttemptChecker, MemoryChecker
from idempotent.errors import AdapterError, ConfigurationError, PublishError
from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.member import ACK, IMPATIENT, receive, send
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


@pytest.mark.parametrize(
    ("own", "options", "checker", "words"),
    [
        pytest.param(IMPATIENT, {}, MemoryChecker, "fenced by other consumer", id="classic"),
        pytest.param(
            IMPATIENT,
            {"semantics": "exactly_once"},
            AttemptChecker,
            "fenced by other consumer",
            id="exactly_once",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"group.protocol": "consumer"},
            {},
            MemoryChecker,
            "instance ID is still used",
            id="KIP-848",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_of_two_workers_with_one_group_instance_id_one_ends_and_says_why(
    broker, topic, caplog, own, options, checker, words
):
    done, raised = [], []

    def new_worker():
        registry = Registry()
        registry.consumer(topic, group=topic, checker=checker())(lambda message: done.append(message.body))
        config = {**own, "group.instance.id": "one"}
        adapter = KafkaAdapter(broker.bootstrap, commit_interval_s=0.1, consumer_config=config, **options)
        return Worker(registry, adapter, gc_interval_s=None)

    def run(worker):
        try:
            worker.run()
        except AdapterError as error:
            raised.append(str(error))

    workers = [new_worker(), new_worker()]
    threads = [threading.Thread(target=run, args=(worker,)) for worker in workers]
    send(broker, topic, 1)
    threads[0].start()
    until(lambda: broker.committed(topic, topic) == 1, "the first commit")
    threads[1].start()
    until(lambda: raised, "the end of one of them")
    send(broker, topic, 1)
    until(lambda: broker.committed(topic, topic) == 2, "the other one goes on")
    for worker in workers:
        worker.stop()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    (reason,) = raised
    assert words in reason
    assert len(done) == 2
    assert [record for record in caplog.records if record.exc_info] == []
    assert not logged(caplog, "close_failed")


def too_large(broker, topic):
    """The settings of a producer that a refused record breaks."""
    broker.configure(topic, **{"max.message.bytes": "1000"})
    return {"producer_config": {"enable.gapless.guarantee": True}, "publish_timeout_s": 10.0}


@pytest.mark.parametrize("consumes", [False, True], ids=["publisher", "consumer"])
def test_a_producer_that_is_broken_for_good_is_replaced(broker, topic, opened, caplog, consumes):
    options = too_large(broker, topic)
    adapter = opened(topic, group=topic, **options) if consumes else KafkaAdapter(broker.bootstrap, **options)
    if not consumes:
        adapter.open([])
    adapter.publish(Message(topic, b"1", id="1"))
    with pytest.raises(PublishError, match="too large"):
        adapter.publish(Message(topic, b"2" * 5000, id="2"))
    for number in (3, 4):
        adapter.publish(Message(topic, b"%d" % number, id=f"{number}"))
    adapter.close()
    assert [raw.value() for raw in broker.read_raw(topic)] == [b"1", b"3", b"4"]
    (told,) = [record.error for record in logged(caplog, "kafka_producer_broken")]
    assert "gap-less" in told


def test_a_dead_letter_that_breaks_the_producer_holds_back_no_other_one(broker, topic, opened):
    options = too_large(broker, f"{topic}.dlq")
    adapter = opened(topic, group=topic, ordering="none", max_in_flight_per_partition=1, **options)
    for body in (b"1", b"2" * 5000, b"3", b"4"):
        broker.send(topic, body)
    broker.flush()

    def letters():
        for delivery in adapter.receive(1, 0.1):
            adapter.settle(delivery, Result(Outcome.DEAD, error=ValueError("no")))
        return {raw.value() for raw in broker.read_raw(f"{topic}.dlq")} == {b"1", b"3", b"4"}

    until(letters, "the other letters")
