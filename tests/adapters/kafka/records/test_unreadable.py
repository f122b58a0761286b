"""Records that the client library cannot decode."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from idempotent import Outcome, Registry, Worker
from idempotent.adapters.copies import CUT_HEADER, ORIGIN_HEADER, OUTCOME_HEADER, REASON_HEADER
from idempotent.adapters.kafka import KafkaAdapter
from idempotent.checkers import MemoryChecker
from idempotent.testing.adapter_contract import until
from tests.adapters.kafka.member import GROUP
from tests.adapters.kafka.through_proxy import garbled


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ordering": "key"},
        {"ordering": "none"},
        {"semantics": "at_most_once"},
        {"ordering": "none", "retry_topic": True},
    ],
)
def test_a_header_name_that_is_not_utf_8_rejects_its_message_alone(broker, topic, options):
    broker.make(f"{topic}.{GROUP}.retry")
    for number in range(4):
        headers = [("colour", b"red")] if number in (1, 3) else [("size", b"1")]
        broker.produce(topic, b"%d" % number, b"customer", headers)
    done, settled = [], []
    registry = Registry()
    registry.consumer(topic, group=GROUP, checker=MemoryChecker())(lambda message: done.append(message.body))
    with garbled(broker) as bootstrap:
        adapter = KafkaAdapter(bootstrap, **options)
        worker = Worker(
            registry,
            adapter,
            gc_interval_s=None,
            on_result=lambda message, result: settled.append((message.body, result.outcome)),
        )
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(worker.run)
            try:
                until(lambda: broker.committed(GROUP, topic) == 4, "all offsets")
            finally:
                worker.stop()
            summary = running.result(60)
    assert sorted(done) == [b"0", b"2"]
    assert sorted(body for body, outcome in settled if outcome is Outcome.REJECTED) == [b"1", b"3"]
    assert (summary.outcomes[Outcome.REJECTED], summary.outcomes[Outcome.PROCESSED]) == (2, 2)
    letters = broker.read_raw(f"{topic}.dlq")
    assert [(raw.value(), raw.key()) for raw in letters] == [(b"1", b"customer"), (b"3", b"customer")]
    headers = {name: value.decode() for name, value in letters[0].headers()}
    assert headers[OUTCOME_HEADER] == "rejected"
    assert "header" in headers[REASON_HEADER]
    assert headers[ORIGIN_HEADER] == f"{topic}/0/1"
    assert headers[CUT_HEADER]
