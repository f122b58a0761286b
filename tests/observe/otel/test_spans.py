"""Each message that is processed has a span, which is the current one while its handler runs."""

import asyncio
import os
import time

import confluent_kafka
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode
from sqlalchemy import event
from sqlalchemy.orm import Session
from stomp.utils import Frame

from idempotent import Message, Outcome, Worker
from idempotent.adapters import MemoryAdapter, MemoryBroker
from idempotent.block import Once
from idempotent.checkers import MemoryChecker
from idempotent.claims import ClaimRequest
from idempotent.message import Position
from idempotent.observe import Observer
from tests.support.logs import events

TRACE_ID, SENDER_ID = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
SENT = {"traceparent": f"00-{TRACE_ID:032x}-{SENDER_ID:016x}-01"}

sqlite = pytest.mark.parametrize("sql_store", ["sqlite"], indirect=True)
postgres = pytest.mark.parametrize("sql_store", ["postgres"], indirect=True)


def order(name="1", headers=SENT):
    return Message("orders", id=name, headers=headers)


def linked(span):
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


@sqlite
def test_a_span_says_what_became_of_its_message_and_has_the_handlers_spans_in_it(
    telemetry, registry, sql_store
):
    @registry.consumer("orders", group="billing", checker=sql_store.leased())
    def handle(message):
        with telemetry.tracer.start_as_current_span("charge"):
            time.sleep(0.01)

    handle(order())
    charge, span = telemetry.spans
    assert (span.name, span.kind) == ("process orders", SpanKind.CONSUMER)
    assert span.status.status_code is StatusCode.UNSET
    fence = span.attributes["idempotent.fence"]
    assert fence > 0
    assert dict(span.attributes) == {
        "messaging.system": "idempotent",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.consumer.group.name": "billing",
        "messaging.message.id": "1",
        "idempotent.key": "orders:billing:1",
        "idempotent.fence": fence,
        "idempotent.outcome": "processed",
    }
    # A link, as the conventions demand, and the parent too: one trace from the sender on.
    assert linked(span) == [(TRACE_ID, SENDER_ID)]
    assert (span.context.trace_id, span.parent.span_id) == (TRACE_ID, SENDER_ID)
    assert charge.parent.span_id == span.context.span_id
    assert span.start_time <= charge.start_time
    assert charge.end_time <= span.end_time
    (took,) = telemetry.points("messaging.process.duration")
    assert (took.count, took.sum) == (1, (span.end_time - span.start_time) / 1e9)
    assert took.explicit_bounds[0] == 0.005
    assert "idempotent.key" not in took.attributes
    assert trace.get_current_span() is trace.INVALID_SPAN


@sqlite
def test_a_duplicate_has_a_span_and_is_counted_but_took_no_time(telemetry, registry, sql_store):
    handle = registry.consumer("orders", checker=sql_store.leased())(lambda _: None)
    handle(order())
    handle(order())
    assert telemetry.outcomes() == ["processed", "duplicate"]
    duplicate = telemetry.spans[-1]
    assert linked(duplicate) == [(TRACE_ID, SENDER_ID)]
    assert duplicate.start_time == duplicate.end_time
    (took,) = telemetry.points("messaging.process.duration")
    (consumed,) = telemetry.points("messaging.client.consumed.messages")
    assert (took.count, consumed.value) == (1, 2)


@sqlite
def test_a_failure_is_an_error_with_its_type_and_without_its_text(telemetry, registry, sql_store):
    class NoSuchCustomerError(Exception):
        pass

    @registry.consumer("orders", checker=sql_store.leased(), max_attempts=1)
    def handle(message):
        raise NoSuchCustomerError("4111 1111 1111 1111")

    assert handle.process(order()).outcome is Outcome.DEAD
    span = telemetry.one("process orders")
    assert span.attributes["error.type"] == f"{__name__}.{NoSuchCustomerError.__qualname__}"
    assert (span.attributes["idempotent.outcome"], span.attributes["idempotent.attempt"]) == ("dead", 1)
    assert span.status.status_code is StatusCode.ERROR
    assert "4111" not in span.to_json()
    (took,) = telemetry.points("messaging.process.duration")
    assert took.attributes["error.type"] == span.attributes["error.type"]


def test_in_the_span_of_a_request_it_is_that_ones_child_and_links_to_its_sender(telemetry, registry):
    handle = registry.consumer("orders", checker=MemoryChecker())(lambda _: None)
    with telemetry.tracer.start_as_current_span("POST /orders") as request:
        handle(order())
    span = telemetry.one("process orders")
    assert span.parent.span_id == request.get_span_context().span_id
    assert linked(span) == [(TRACE_ID, SENDER_ID)]
    with trace.use_span(request):  # it has ended, as that in which a service once started its worker
        handle(order("2"))
    assert telemetry.spans[-1].parent.span_id == SENDER_ID


@pytest.mark.parametrize(
    "headers", [{}, {"traceparent": "nonsense"}, {"traceparent": 7}, {"traceparent": b"\xff"}]
)
def test_a_message_without_a_trace_begins_one(telemetry, registry, headers):
    registry.consumer("orders", checker=MemoryChecker())(lambda _: None)(order(headers=headers))
    span = telemetry.one("process orders")
    assert span.parent is None
    assert not span.links


@pytest.mark.parametrize(
    ("raw", "system"), [(confluent_kafka.Message(topic="orders"), "kafka"), (Frame("MESSAGE"), "activemq")]
)
def test_the_broker_is_known_by_the_original_of_the_message(telemetry, registry, raw, system):
    """That RabbitMQ is, the way through it shows."""
    position = Position("orders", 3, 7, 7)
    handle = registry.consumer("orders", checker=MemoryChecker())(lambda _: None)
    handle(Message("orders", id="1", raw=raw, position=position))
    attributes = telemetry.one("process orders").attributes
    assert (attributes["messaging.system"], attributes["messaging.destination.partition.id"]) == (system, "3")


def test_a_trace_in_bytes_is_read(telemetry, registry):
    headers = {"traceparent": SENT["traceparent"].encode()}
    registry.consumer("orders", checker=MemoryChecker())(lambda _: None)(order(headers=headers))
    assert telemetry.one("process orders").parent.span_id == SENDER_ID


def test_a_batch_has_one_span_that_links_to_each_message(telemetry, registry):
    @registry.consumer("orders", checker=MemoryChecker(), batch=True)
    def handle(messages):
        telemetry.tracer.start_span("book all").end()

    handle.process(order("0"))
    handle.process_many([order(name) for name in "012"])
    assert telemetry.outcomes() == ["processed", "duplicate", "processed"]
    _, _, batch = telemetry.named("process orders")
    assert batch.parent is None
    assert linked(batch) == [(TRACE_ID, SENDER_ID)] * 2
    assert [link.attributes["messaging.message.id"] for link in batch.links] == ["1", "2"]
    assert batch.attributes["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in batch.attributes
    assert telemetry.named("book all")[1].parent.span_id == batch.context.span_id


@sqlite
def test_a_group_that_is_rolled_back_has_a_span_for_each_run(telemetry, registry, sql_store):
    @registry.consumer("orders", checker=sql_store.transactional())
    def handle(message, session: Session):
        if message.id == "2":
            raise ValueError("no such order")

    results = handle.process_many([order("1"), order("2")])
    assert [result.outcome for result in results] == [Outcome.PROCESSED, Outcome.FAILED]
    assert telemetry.outcomes() == ["undone", "undone", "processed", "failed"]
    first, second, *_ = telemetry.spans
    assert "error.type" not in first.attributes
    assert second.attributes["error.type"] == "ValueError"
    (consumed, failed) = sorted(
        telemetry.points("messaging.client.consumed.messages"), key=lambda point: len(point.attributes)
    )
    assert (consumed.value, failed.value) == (1, 1)


def test_checks_of_a_message_that_is_held_have_no_spans(telemetry, registry):
    checker = MemoryChecker()
    handle = registry.consumer("orders", checker=checker)(lambda _: None)
    claim = checker.protocol.claim(ClaimRequest(handle.key_of("1"))).claim
    held = order()
    assert {handle.process(held).outcome for _ in range(5)} == {Outcome.IN_PROGRESS}
    assert not telemetry.spans
    checker.protocol.complete(claim, None)
    assert handle.process(held).outcome is Outcome.DUPLICATE
    assert telemetry.outcomes() == ["duplicate"]
    assert not telemetry.points("messaging.process.duration")


def test_an_async_handler_has_its_span_across_its_awaits(telemetry, registry):
    @registry.consumer("orders", checker=MemoryChecker())
    async def handle(message):
        await asyncio.sleep(0.01)
        telemetry.tracer.start_span(f"charge {message.id}").end()
        await asyncio.gather(asyncio.to_thread(telemetry.tracer.start_span(f"mail {message.id}").end))

    async def main():
        await asyncio.gather(*(handle.process(order(name)) for name in "12"))
        assert trace.get_current_span() is trace.INVALID_SPAN

    asyncio.run(main())
    spans = {
        span.attributes["messaging.message.id"]: span.context.span_id
        for span in telemetry.named("process orders")
    }
    for name in "12":
        for own in ("charge", "mail"):
            assert telemetry.one(f"{own} {name}").parent.span_id == spans[name]


def test_a_handler_that_is_cancelled_ends_its_span_as_interrupted(telemetry, registry):
    async def main():
        begun = asyncio.Event()

        @registry.consumer("orders", checker=MemoryChecker())
        async def handle(message):
            begun.set()
            await asyncio.sleep(60)

        task = asyncio.create_task(handle.process(order()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    span = telemetry.one("process orders")
    assert span.attributes["idempotent.outcome"] == "interrupted"
    assert span.attributes["error.type"] == "asyncio.exceptions.CancelledError"
    assert not telemetry.points("messaging.client.consumed.messages")


def test_a_handler_that_runs_out_of_time_has_failed(telemetry, registry):
    @registry.consumer("orders", checker=MemoryChecker(), handler_timeout_s=0.01)
    async def handle(message):
        await asyncio.sleep(60)

    asyncio.run(handle.process(order()))
    span = telemetry.one("process orders")
    assert span.attributes["idempotent.outcome"] == "failed"
    assert span.attributes["error.type"] == "idempotent.errors.HandlerTimeoutError"


def test_a_handler_that_gives_its_message_to_another_consumer_keeps_its_span(telemetry, registry):
    inner = registry.consumer("orders", group="inner", checker=MemoryChecker())(lambda _: None)
    registry.consumer("orders", group="outer", checker=MemoryChecker())(lambda given: bool(inner(given)))(
        order()
    )
    first, second = telemetry.spans
    assert (first.attributes["messaging.consumer.group.name"], first.parent.span_id) == (
        "inner",
        second.context.span_id,
    )
    assert telemetry.outcomes() == ["processed", "processed"]


@pytest.mark.parametrize("is_async", [False, True])
def test_what_runs_in_the_place_of_the_handler_has_the_span(telemetry, registry, is_async):
    """As the functions, the middleware and the plug-ins do it."""

    async def call():
        telemetry.tracer.start_span("charge").end()

    async def never(_): ...

    if is_async:
        consumer = registry.consumer("orders", checker=MemoryChecker())(never)
        asyncio.run(consumer.process(order(), call=call))
    else:
        consumer = registry.consumer("orders", checker=MemoryChecker())(lambda _: None)
        consumer.process(order(), call=lambda: asyncio.run(call()))
    assert telemetry.one("charge").parent.span_id == telemetry.one("process orders").context.span_id


def test_a_block_has_a_span(telemetry, registry):
    ship = registry.consumer("ship", checker=MemoryChecker())(lambda _: None)
    with Once(lambda *, is_async: ship, Message("ship", id="1"), wait_s=0.0):
        telemetry.tracer.start_span("label").end()
    assert trace.get_current_span() is trace.INVALID_SPAN
    label, block = telemetry.spans
    assert block.end_time >= label.end_time
    assert label.parent.span_id == block.context.span_id
    assert (block.name, block.attributes["idempotent.outcome"]) == ("process ship", "processed")


@postgres
def test_the_statements_of_a_transactional_handler_are_in_its_span(telemetry, registry, sql_store):
    engine = sql_store.engine()

    @event.listens_for(
        engine, "before_cursor_execute"
    )  # as OpenTelemetry's own instrumentation of SQLAlchemy
    def trace_it(connection, cursor, statement, *_):
        telemetry.tracer.start_span(statement.partition(" ")[0]).end()

    @registry.consumer("orders", checker=sql_store.transactional(engine))
    def handle(message, session: Session):
        session.execute(sql_store.effects.insert().values(id=message.id))

    handle(order())
    span = telemetry.one("process orders")
    within = [
        each.name for each in telemetry.spans if each.parent and each.parent.span_id == span.context.span_id
    ]
    assert within == ["INSERT"]
    assert sql_store.booked() == {"1": 1}


@pytest.mark.parametrize("batch_size", [1, 100])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_settlement_of_a_worker_is_in_the_span_of_its_message(telemetry, registry, is_async, batch_size):
    def handle(message):
        if message.id == "2":
            raise ValueError("no such order")

    async def handle_async(message):
        handle(message)

    registry.consumer("orders", checker=MemoryChecker(), max_attempts=1)(handle_async if is_async else handle)
    broker = MemoryBroker()
    for name in ("1", "2"):
        broker.publish(order(name))
    broker.publish(order(None))
    Worker(registry, MemoryAdapter(broker, until_empty=True), batch_size=batch_size).run()
    spans = {
        span.attributes.get("messaging.message.id"): span
        for span in telemetry.named("process orders")
        if span.attributes["idempotent.outcome"] != "undone"
    }
    settled = telemetry.named("settle orders")
    assert {span.attributes["idempotent.outcome"] for span in settled} == {"processed", "dead", "rejected"}
    for span in settled:
        its = spans[span.attributes.get("messaging.message.id")]
        assert span.kind is SpanKind.CLIENT
        assert span.parent.span_id == its.context.span_id
        assert span.attributes["idempotent.outcome"] == its.attributes["idempotent.outcome"]
        assert linked(span) == [(TRACE_ID, SENDER_ID)]


class Broken(Observer):
    """As an SDK that fails wherever it is called."""

    def fail(self, *_):
        raise RuntimeError("no such collector")

    around = processed = sending = fail


class BrokenOnLeaving(Observer):
    def around(self, consumer, messages, claim):
        return self

    def __enter__(self):
        pass

    def __exit__(self, *_):
        raise RuntimeError("no such collector")


@pytest.mark.parametrize("broken", [Broken, BrokenOnLeaving])
@pytest.mark.parametrize("is_async", [False, True])
def test_telemetry_that_fails_changes_nothing_of_a_message(telemetry, registry, broken, is_async, caplog):
    registry.observers.add(broken())

    async def handle(message):
        telemetry.tracer.start_span("charge").end()
        if message.id == "2":
            raise ValueError("no such order")
        return 7

    consumer = registry.consumer("orders", checker=MemoryChecker(), max_attempts=1)
    process = consumer(handle if is_async else lambda message: asyncio.run(handle(message))).process
    first, second = (asyncio.run(r) if is_async else r for r in (process(order("1")), process(order("2"))))
    assert (first.outcome, first.value) == (Outcome.PROCESSED, 7)
    assert (second.outcome, str(second.error)) == (Outcome.DEAD, "no such order")
    assert set(events(caplog)) - {"message_dead"} == {"observer_failed"}
    assert telemetry.outcomes() == ["processed", "dead"]


class Ending(SpanExporter):
    """Raises what the SDK lets pass."""

    def export(self, spans):
        raise SystemExit


def test_an_exporter_that_ends_the_program_keeps_no_other_span_from_its_end(telemetry, registry, caplog):
    telemetry.tracers.add_span_processor(SimpleSpanProcessor(Ending()))
    registry.consumer("orders", checker=MemoryChecker())(lambda message: None)
    broker = MemoryBroker()
    for number in range(3):
        broker.publish(order(str(number)))
    summary = Worker(registry, MemoryAdapter(broker, until_empty=True), batch_size=3).run()
    assert summary[Outcome.PROCESSED] == 3
    assert telemetry.outcomes() == ["processed"] * 3
    assert telemetry.outcomes("settle orders") == ["processed"] * 3
    (point,) = telemetry.points("messaging.process.duration")
    assert point.count == 3
    assert events(caplog).count("observer_failed") == 6


class Written(SpanExporter):
    """Writes the name of each span into a file, which a forked child would do as well."""

    def __init__(self, file):
        self.file = file

    def export(self, spans):
        with self.file.open("a") as out:
            out.writelines(f"{os.getpid()} {span.name}\n" for span in spans)
        return SpanExportResult.SUCCESS


def test_a_child_that_leaves_the_handler_ends_no_span_of_its_parent(telemetry, registry, tmp_path):
    file = tmp_path / "spans"
    telemetry.tracers.add_span_processor(SimpleSpanProcessor(Written(file)))

    @registry.consumer("orders", checker=MemoryChecker())
    def handle(message):
        child = os.fork()
        if not child:
            raise SystemExit(0)
        os.waitpid(child, 0)

    handle(order())
    assert file.read_text() == f"{os.getpid()} process orders\n"
