"""IdempotentCollector: exports the counters and the measures of outboxes to Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from idempotent.errors import MissingExtraError
from idempotent.observe.counting import Counters, OutboxMeasures, counters, outboxes
from idempotent.outcomes import Outcome

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingExtraError("prometheus-client", "prometheus") from error

_OUTCOMES: Final = "Deliveries by outcome."
_OUTBOX: Final = ["outbox"]
_EVENTS: Final = "Events besides outcomes; idempotent.observe.Event explains each."


class IdempotentCollector(Collector):
    """What happened to messages, and what is in the outboxes that relays of this process publish.

    - `idempotent_outcomes_total{consumer, outcome}` and `idempotent_events_total{consumer, event}`, which
      begin at 0 for each consumer when its module is imported;
    - `idempotent_outbox_messages{outbox, state}` (waiting, held or delayed), `idempotent_outbox_oldest_seconds{outbox}`
      (0: none waits) and `idempotent_outbox_relays{outbox}`. Each relay measures the whole outbox, so take the maximum
      over processes. They are absent while this process has no relay;
    - `idempotent_outbox_published_total{outbox}` and `idempotent_outbox_refused_total{outbox}`.

    Register it once: `prometheus_client.REGISTRY.register(IdempotentCollector())`. It reads what was counted when
    Prometheus scrapes, so messages pay nothing for it.

    Args:
        source: the counters; default: the process-wide ones.
        measures: the outboxes; default: the process-wide ones.
    """

    def __init__(self, source: Counters = counters, measures: OutboxMeasures = outboxes) -> None:
        self._source = source
        self._measures = measures

    def collect(self) -> Iterable[Metric]:
        """The current values."""
        outcomes = CounterMetricFamily("idempotent_outcomes", _OUTCOMES, labels=["consumer", "outcome"])
        events = CounterMetricFamily("idempotent_events", _EVENTS, labels=["consumer", "event"])
        for (consumer, what), count in sorted(
            self._source.snapshot().items(), key=lambda item: (item[0][0], item[0][1].value)
        ):
            family = outcomes if isinstance(what, Outcome) else events
            family.add_metric([consumer, what.value], count)
        return [outcomes, events, *self._outboxes()]

    def _outboxes(self) -> Iterable[Metric]:
        messages = GaugeMetricFamily(
            "idempotent_outbox_messages", "Messages in an outbox.", labels=["outbox", "state"]
        )
        oldest = GaugeMetricFamily(
            "idempotent_outbox_oldest_seconds", "Since the oldest waiting message was sent.", labels=_OUTBOX
        )
        relays = GaugeMetricFamily("idempotent_outbox_relays", "Relays with a lease.", labels=_OUTBOX)
        published = CounterMetricFamily(
            "idempotent_outbox_published", "Messages that the broker confirmed.", labels=_OUTBOX
        )
        refused = CounterMetricFamily(
            "idempotent_outbox_refused", "Refusals of the broker, repeated ones included.", labels=_OUTBOX
        )
        for name, stats in sorted(self._measures.stats().items()):
            messages.add_metric([name, "waiting"], stats.waiting)
            messages.add_metric([name, "held"], stats.held)
            messages.add_metric([name, "delayed"], stats.delayed)
            oldest.add_metric([name], stats.oldest_s or 0.0)
            relays.add_metric([name], stats.relays)
        for name, (taken, not_taken) in sorted(self._measures.totals().items()):
            published.add_metric([name], taken)
            refused.add_metric([name], not_taken)
        return [messages, oldest, relays, published, refused]
