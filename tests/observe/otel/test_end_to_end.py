"""A trace goes from a request through an outbox, its relay and RabbitMQ to the consumer; and out of a process."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise

import pytest
import sqlalchemy as sa
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.trace import SpanKind
from sqlalchemy.orm import Session

from idempotent import Message, Worker
from idempotent.adapters import adapter_from_url
from idempotent.checkers import MemoryChecker
from idempotent.observe import Observer
from idempotent.outbox import Outbox, outbox_tables
from idempotent.outbox.entries import BUCKETS
from idempotent.outbox.headers import decoded_headers
from tests.observe.otel.test_spans import SENDER_ID, SENT, TRACE_ID, linked
from tests.outbox.brokers import rabbitmq
from tests.outbox.picky import relay, until
from tests.project.house import ROOT

pytestmark = pytest.mark.parametrize("sql_store", ["sqlite"], indirect=True)


@pytest.fixture
def outbox_with(sql_store):
    metadata = sa.MetaData()
    outbox_tables(metadata, sql_store.table)
    metadata.create_all(sql_store.admin_engine)

    def make(*observers):
        made = Outbox(sql_store.engine(), table=sql_store.table, observers=observers)
        sql_store.opened.callback(made.close)
        return made

    return make


@pytest.fixture
def outbox(outbox_with, telemetry):
    return outbox_with(telemetry.observer)


def headers_in(outbox):
    (waiting,) = outbox.store.read(dict.fromkeys(range(BUCKETS), 1), "")
    return decoded_headers(waiting.headers)


@pytest.mark.slow
def test_a_trace_goes_from_a_request_through_the_outbox_and_rabbitmq_to_the_consumer(
    request, telemetry, registry, outbox, sql_store
):
    with rabbitmq(request) as place:
        orders, invoices = (f"{name}-{secrets.token_hex(4)}" for name in ("orders", "invoices"))
        place.make(orders, invoices)

        @registry.consumer(orders, checker=sql_store.transactional())
        def on_order(message, session: Session):
            outbox.send(session, Message(invoices, message.body))

        registry.consumer(invoices, checker=MemoryChecker())(lambda _: None)
        worker = Worker(
            registry, adapter_from_url(place.url), services=[relay(outbox, adapter_from_url(place.url))]
        )
        running = threading.Thread(target=worker.run)
        running.start()
        try:
            with (
                telemetry.tracer.start_as_current_span("POST /orders") as posted,
                Session(sql_store.admin_engine) as session,
                session.begin(),
            ):
                outbox.send(session, Message(orders, b"{}"))
            until(lambda: telemetry.named(f"settle {invoices}"))
        finally:
            worker.stop()
            running.join()
    way = ["POST /orders", f"send {orders}", f"process {orders}", f"send {invoices}", f"process {invoices}"]
    spans = [telemetry.one(name) for name in way]
    assert {span.context.trace_id for span in telemetry.spans} == {posted.get_span_context().trace_id}
    for before, after in pairwise(spans):
        assert after.parent.span_id == before.context.span_id
    for sent, processed in (spans[1:3], spans[3:5]):
        assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
        assert linked(processed) == [(sent.context.trace_id, sent.context.span_id)]
    assert {span.attributes["messaging.system"] for span in spans[2::2]} == {"rabbitmq"}
    assert telemetry.one(f"settle {orders}").parent.span_id == spans[2].context.span_id


class Zoned(Observer):
    def sending(self, outbox, message):
        return {"zone": "eu", "tenant": "b"}


def test_headers_of_observers_are_added_to_those_of_the_message(outbox_with, telemetry, sql_store):
    outbox = outbox_with(telemetry.observer, Zoned())
    with Session(sql_store.admin_engine) as session, session.begin():
        outbox.send(session, Message("orders", id="1", headers={"tenant": "a"}))
    context = telemetry.one("send orders").context
    trace = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert headers_in(outbox) == {"tenant": "a", "zone": "eu", "traceparent": trace}


def test_a_trace_that_the_user_gave_is_not_replaced(telemetry, outbox, sql_store):
    with Session(sql_store.admin_engine) as session, session.begin():
        outbox.send(session, Message("orders", id="1", headers={**SENT, "tenant": "a"}))
    assert headers_in(outbox) == {**SENT, "tenant": "a"}
    assert not telemetry.observer.sending("outbox", Message("orders", headers=SENT))
    span, _ = telemetry.named("send orders")
    assert span.kind is SpanKind.CLIENT
    assert linked(span) == [(TRACE_ID, SENDER_ID)]


MODULE = """
from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from idempotent import Message, consumer
from idempotent.observe.otel import OpenTelemetry
from idempotent.registry import default_registry

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())]))
default_registry.observers.add(OpenTelemetry())


@consumer("orders", checker="db")
def on_order(message: Message) -> None: ...
"""


class Receiver:
    """A collector: takes OTLP over HTTP, and keeps it."""

    def __init__(self):
        self.spans, self.metrics, self.resources = [], [], []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.take(self.path, body)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()

            def log_message(self, *_): ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, path, body):
        if path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.resources.append(resource.resource)
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        elif path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.metrics += [metric for scope in resource.scope_metrics for metric in scope.metrics]

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver():
    made = Receiver()
    yield made
    made.close()


@pytest.mark.slow
def test_a_service_that_idempotent_run_starts_exports_its_spans_and_metrics(receiver, sql_store, tmp_path):
    (tmp_path / "traced.py").write_text(MODULE)
    lines = [json.dumps({"id": name, "headers": SENT}) for name in "1213"]
    (tmp_path / "orders.jsonl").write_text("\n".join(lines) + "\n")
    command = (sys.executable, "-m", "idempotent.cli", "run", "traced")
    options = ("--broker", f"file://{tmp_path / 'orders.jsonl'}", "--checker", "db=memory://")
    environ = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_SERVICE_NAME": "billing"}
    done = subprocess.run(
        (*command, *options),
        check=False,
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": f"{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    names = Counter(span.name for span in receiver.spans)
    assert names == {"process orders": 4, "settle orders": 4}
    assert {span.trace_id.hex() for span in receiver.spans} == {f"{TRACE_ID:032x}"}
    outcomes = Counter(
        each.value.string_value
        for span in receiver.spans
        for each in span.attributes
        if span.name == "process orders" and each.key == "idempotent.outcome"
    )
    assert outcomes == {"processed": 3, "duplicate": 1}
    services = {
        each.value.string_value
        for resource in receiver.resources
        for each in resource.attributes
        if each.key == "service.name"
    }
    assert services == {"billing"}
    counted = {metric.name: metric for metric in receiver.metrics}
    assert counted["messaging.process.duration"].histogram.data_points[0].count == 3
    assert counted["messaging.client.consumed.messages"].sum.data_points[0].as_int == 4
