"""The real SDK, whose spans and metrics stay in memory."""

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from idempotent import Registry
from idempotent.observe.otel import OpenTelemetry


class Telemetry:
    """What one process exports: `spans`, and `points` of its metrics. `tracer` makes the application's own spans."""

    def __init__(self):
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.tracers.get_tracer("the application")
        self._meters = MeterProvider([self._reader])
        self.observer = OpenTelemetry(tracer_provider=self.tracers, meter_provider=self._meters)

    @property
    def spans(self):
        """The spans in the order in which they ended."""
        return self._exporter.get_finished_spans()

    def named(self, name):
        return [span for span in self.spans if span.name == name]

    def one(self, name):
        (span,) = self.named(name)
        return span

    def outcomes(self, name="process orders"):
        return [span.attributes["idempotent.outcome"] for span in self.named(name)]

    def points(self, name):
        """The data points of a metric."""
        data = self._reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def close(self):
        self.tracers.shutdown()
        self._meters.shutdown()


@pytest.fixture
def telemetry():
    made = Telemetry()
    yield made
    made.close()


@pytest.fixture
def registry(telemetry):
    return Registry(observers=[telemetry.observer])
