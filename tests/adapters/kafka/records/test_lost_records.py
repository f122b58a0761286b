"""Records that the broker lost, by retention or with the end of its log, before the group processed them."""

import logging
import secrets
import threading
from contextlib import closing, contextmanager

import pytest

from idempotent import Registry, Worker
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.checkers import AttemptChecker, MemoryChecker, OffsetChecker
from idempotent.errors import AdapterError, ConfigurationError
from idempotent.migrations import upgrade
from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.broker import Broker
from tests.adapters.kafka.member import ACK, GROUP, bodies, nothing, nothing_comes, receive, send
from tests.support.services import PrivateKafka

EARLIEST = {"consumer_config": {"auto.offset.reset": "earliest"}}
LATEST = {"consumer_config": {"auto.offset.reset": "latest"}}


@pytest.fixture
def open_as(broker):
    """`open_as(topic, semantics)`: an adapter with a checker that goes with it."""
    adapters = []

    def open_(topic, semantics, bootstrap=None, **options):
        adapter = KafkaAdapter(bootstrap or broker.bootstrap, semantics=semantics, **options)
        adapters.append(adapter)
        checker = AttemptChecker() if semantics == "exactly_once" else MemoryChecker()
        adapter.open([Registry().consumer(topic, group=GROUP, checker=checker)(nothing)])
        return adapter

    yield open_
    for adapter in adapters:
        adapter.close()


def finish(adapter, count):
    for _ in range(count):
        (delivery,) = receive(adapter)
        adapter.settle(delivery, ACK)
    adapter.close()


def error_of(adapter):
    with pytest.raises(AdapterError) as caught:
        until(lambda: adapter.receive(1, 0.1), "a message or an error")
    adapter.close()
    return str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("semantics", ["effectively_once", "exactly_once"])
def test_records_that_were_removed_stop_a_worker_that_promises_effects_once(
    broker, topic, open_as, semantics
):
    send(broker, topic, 6)
    finish(open_as(topic, semantics), 2)
    broker.remove(topic, before=4)
    assert f"records 2 to 3 of {topic}/0 were removed" in error_of(open_as(topic, semantics))
    adapter = open_as(topic, semantics, **EARLIEST)
    assert bodies(receive(adapter)) == [4]


@pytest.mark.slow
@pytest.mark.parametrize(("options", "next_"), [({}, 4), (EARLIEST, 4), (LATEST, 6)])
def test_at_least_once_goes_on_and_logs_an_error(broker, topic, open_as, caplog, options, next_):
    send(broker, topic, 6)
    finish(open_as(topic, "at_least_once"), 2)
    broker.remove(topic, before=4)
    adapter = open_as(topic, "at_least_once", **options)
    with caplog.at_level(logging.ERROR):
        until(lambda: adapter.receive(0, 0.1) or caplog.records, "an error in the log")
    (record,) = caplog.records
    assert record.event == "records_lost"
    assert (record.topic, record.partition, record.position, record.first, record.end) == (topic, 0, 2, 4, 6)
    broker.send(topic, b"6")
    broker.flush()
    assert bodies(receive(adapter)) == [next_]


@pytest.mark.parametrize("semantics", ["at_least_once", "effectively_once"])
def test_a_group_without_offsets_has_lost_nothing(broker, topic, open_as, caplog, semantics):
    send(broker, topic, 4)
    broker.remove(topic, before=2)
    assert bodies(receive(open_as(topic, semantics))) == [2]
    assert not caplog.records


def test_a_new_group_may_begin_with_the_next_message(broker, topic, open_as):
    send(broker, topic, 2)
    adapter = open_as(topic, "at_least_once", **LATEST)
    nothing_comes(adapter, 1.0)
    broker.send(topic, b"2")
    broker.flush()
    assert bodies(receive(adapter)) == [2]


def test_an_unknown_policy_is_refused(topic, open_as):
    with pytest.raises(
        ConfigurationError, match=r"auto\.offset\.reset must be one of 'earliest', 'latest', 'error'"
    ):
        open_as(topic, "at_least_once", consumer_config={"auto.offset.reset": "none"})


# A log that is shorter than the offset of the group, and one that has grown past it again.
@pytest.mark.slow
@pytest.mark.parametrize("end", [3, 7])
def test_a_truncated_log_stops_a_worker_and_its_new_records_are_other_messages(
    spare, open_as, opened, end, tmp_path
):
    kafka = spare(PrivateKafka)
    broker = Broker(kafka.url)
    topic = f"orders-{secrets.token_hex(6)}"
    broker.make(topic)
    for number in range(4):  # a batch for each, so that the log can be cut between them
        broker.send(topic, str(number).encode())
        broker.flush()
    adapter = open_as(topic, "effectively_once", kafka.url)
    ids = []
    for _ in range(4):
        (delivery,) = receive(adapter)
        ids.append(delivery.message.id)
        adapter.settle(delivery, ACK)
    adapter.close()
    offsets = f"sqlite:///{tmp_path / 'offsets.db'}"
    upgrade(offsets)
    with storing(kafka.url, topic, offsets) as worker, running(worker):
        until(lambda: broker.committed("stored", topic) == 4, "all offsets")
    kafka.kill()
    truncate(kafka, topic)
    kafka.start()
    broker = Broker(kafka.url)  # the other one's producer would count on from the record that was lost
    for number in range(2, end):
        broker.send(topic, str(number).encode())
        broker.flush()
    assert f"{topic}/0 has lost records at its end" in error_of(open_as(topic, "effectively_once", kafka.url))
    with (
        storing(kafka.url, topic, offsets) as worker,
        pytest.raises(AdapterError, match="has lost records at its end"),
    ):
        worker.run()
    adapter = opened(topic, group="other", bootstrap=kafka.url)
    found = []
    for _ in range(end):
        (delivery,) = receive(adapter)
        found.append(delivery.message.id)
        adapter.settle(delivery, ACK)
    adapter.close()
    assert found[:2] == ids[:2]
    assert not {*found[2:]} & {*ids}


@contextmanager
def storing(bootstrap, topic, url):
    """A worker that keeps its offsets in a database."""
    registry = Registry()
    with closing(OffsetChecker(url)) as checker:
        registry.consumer(topic, group="stored", checker=checker)(nothing)
        yield Worker(registry, KafkaAdapter(bootstrap, commit_interval_s=0.1), gc_interval_s=None)


@contextmanager
def running(worker):
    thread = threading.Thread(target=worker.run)
    thread.start()
    yield
    worker.stop()
    thread.join(150)


def truncate(kafka, topic):
    """Remove the second half of the log of a stopped broker, as a power cut does to a disk that had not written it."""
    folder = kafka.folder / "data" / f"{topic}-0"
    for file in folder.glob("0*"):
        if file.suffix == ".log":
            log = file.read_bytes()
            file.write_bytes(log[: len(log) // 2])
        else:
            file.unlink()
