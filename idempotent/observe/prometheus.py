"""IdempotentCollector: exports the counters to Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from idempotent.errors import MissingExtraError
from idempotent.observe.counting import Counters, counters
from idempotent.outcomes import Outcome

try:
    from prometheus_client.core import CounterMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingExtraError("prometheus-client", "prometheus") from error

_OUTCOMES: Final = "Deliveries by outcome."
_EVENTS: Final = "Events besides outcomes; idempotent.observe.Event explains each."


class IdempotentCollector(Collector):
    """`idempotent_outcomes_total{consumer, outcome}` and `idempotent_events_total{consumer, event}`.

    Register it once: `prometheus_client.REGISTRY.register(IdempotentCollector())`. It reads the counters when
    Prometheus scrapes, so messages pay nothing for it.

    Args:
        source: the counters; default: the process-wide ones.
    """

    def __init__(self, source: Counters = counters) -> None:
        self._source = source

    def collect(self) -> Iterable[Metric]:
        """The current values of both counters."""
        outcomes = CounterMetricFamily("idempotent_outcomes", _OUTCOMES, labels=["consumer", "outcome"])
        events = CounterMetricFamily("idempotent_events", _EVENTS, labels=["consumer", "event"])
        for (consumer, what), count in sorted(
            self._source.snapshot().items(), key=lambda item: (item[0][0], item[0][1].value)
        ):
            family = outcomes if isinstance(what, Outcome) else events
            family.add_metric([consumer, what.value], count)
        return [outcomes, events]
