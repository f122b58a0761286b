"""IdempotentCollector: exports what this process counts, measures and runs to Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from itertools import accumulate
from typing import Final

from idempotent.errors import MissingExtraError
from idempotent.observe.counting import Counters, OutboxMeasures, counters, outboxes, stores
from idempotent.observe.events import Event, Stage
from idempotent.observe.running import workers
from idempotent.observe.timing import BUCKETS_S
from idempotent.outcomes import Outcome

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import REGISTRY, Collector, CollectorRegistry
except ImportError as error:
    raise MissingExtraError("prometheus-client", "prometheus") from error

_OUTCOMES: Final = "Deliveries by outcome."
_OUTBOX: Final = ["outbox"]
_CONSUMER: Final = ["consumer"]
_LOST: Final = (
    "Leases that ended before their renewal, and those of processes that died, which another delivery took."
)
_LOSSES: Final = (Event.LEASE_TAKEN_OVER, Event.LEASE_RENEWED_LATE)
_BOUNDS: Final = (*map(str, BUCKETS_S), "+Inf")
_STAGES: Final = {
    Stage.CLAIM: "Until the store answered the claim of a message.",
    Stage.HANDLER: "For which the handler of a message ran.",
    Stage.COMPLETION: "Until the store recorded that a message is done.",
    Stage.SETTLE: "Until the worker had told the broker what became of a message.",
}
_EVENTS: Final = "Events besides outcomes; idempotent.observe.Event explains each."


class IdempotentCollector(Collector):
    """What happens to messages, and what is in the stores and outboxes. `docs/reference/metrics.md` explains each.

    Register it once, before workers run: `prometheus_client.REGISTRY.register(IdempotentCollector())`. `idempotent run
    --metrics-port` and `HealthServer` do so.

    It reads what was counted when Prometheus scrapes. From when it is made, durations are measured, which takes each
    message three microseconds, and workers that start measure their stores, each fifteen seconds and one process at a
    time. Nobody else pays for that.

    Args:
        source: the counters; default: the process-wide ones.
        measures: the outboxes; default: the process-wide ones.
    """

    def __init__(self, source: Counters = counters, measures: OutboxMeasures = outboxes) -> None:
        self._source = source
        self._durations = source.durations
        self._measures = measures
        stores.wanted = True

    def collect(self) -> Iterable[Metric]:
        """The current values."""
        return [*self._counts(), *self._histograms(), *_load(), *_stores(), *self._outboxes()]

    def _counts(self) -> Iterable[Metric]:
        outcomes = CounterMetricFamily("idempotent_outcomes", _OUTCOMES, labels=["consumer", "outcome"])
        events = CounterMetricFamily("idempotent_events", _EVENTS, labels=["consumer", "event"])
        lost = CounterMetricFamily("idempotent_lease_lost", _LOST, labels=_CONSUMER)
        leases: Counter[str] = Counter()
        for (consumer, what), count in sorted(
            self._source.snapshot().items(), key=lambda item: (item[0][0], item[0][1].value)
        ):
            family = outcomes if isinstance(what, Outcome) else events
            family.add_metric([consumer, what.value], count)
            if what in _LOSSES:
                leases[consumer] += count
        for consumer, count in leases.items():
            lost.add_metric([consumer], count)
        return [outcomes, events, lost]

    def _histograms(self) -> Iterable[Metric]:
        families = {
            stage: HistogramMetricFamily(f"idempotent_{stage.value}_duration_seconds", text, labels=_CONSUMER)
            for stage, text in _STAGES.items()
        }
        for consumer, histograms in sorted(self._durations.snapshot().items()):
            for stage, histogram in histograms.items():
                *counts, total_s = histogram
                sums = zip(_BOUNDS, accumulate(counts), strict=True)
                families[stage].add_metric([consumer], list(sums), total_s)
        return families.values()

    def _outboxes(self) -> Iterable[Metric]:
        messages = GaugeMetricFamily(
            "idempotent_outbox_messages", "Messages in an outbox.", labels=["outbox", "state"]
        )
        oldest = GaugeMetricFamily(
            "idempotent_outbox_oldest_seconds",
            "Since the oldest waiting message was sent, or its delay ended.",
            labels=_OUTBOX,
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


def _load() -> Iterable[Metric]:
    load = workers.load()
    ready = GaugeMetricFamily("idempotent_ready", "What /readyz answers: 1 for 200, 0 for 503.")
    if load.ready is not None:
        ready.add_metric([], load.ready)
    yield ready
    for name, text, values in (
        ("in_progress", "Handlers that run.", load.in_progress),
        ("held", "Deliveries that wait for a later check.", load.held),
        ("longest_running_seconds", "Since the handler began that runs for longest.", load.longest_s),
        ("paused", "1 while the consumer is paused.", load.paused),
    ):
        family = GaugeMetricFamily(f"idempotent_{name}", text, labels=_CONSUMER)
        for consumer, value in sorted(values.items()):
            family.add_metric([consumer], value)
        yield family
    backlog = GaugeMetricFamily(
        "idempotent_backlog_messages", "Messages that wait in the broker.", labels=["consumer", "partition"]
    )
    for labels, waiting in sorted(load.backlog.items()):
        backlog.add_metric(labels, waiting)
    yield backlog


def _stores() -> Iterable[Metric]:
    labels = ["store", "consumer"]
    dead = GaugeMetricFamily("idempotent_store_dead_keys", "Keys that wait for a person.", labels=labels)
    oldest = GaugeMetricFamily(
        "idempotent_store_oldest_claim_seconds", "Since the oldest claim in progress was made.", labels=labels
    )
    lapsed = GaugeMetricFamily(
        "idempotent_store_lapsed_claims", "Claims whose lease has ended.", labels=labels
    )
    expired = GaugeMetricFamily(
        "idempotent_store_expired_keys", "Keys that gc has not deleted yet.", labels=["store"]
    )
    runs = GaugeMetricFamily("idempotent_store_runs", "Runs of Spark.", labels=["store", "state"])
    waits = GaugeMetricFamily(
        "idempotent_store_prepared_run_waits_seconds",
        "Since the lease ended of the PREPARED run that has had no driver for longest.",
        labels=["store"],
    )
    for store, stats in sorted(stores.stats().items()):
        for state, number in stats.runs.items():
            runs.add_metric([store, state], number)
        if stats.runs:
            waits.add_metric([store], stats.prepared_waits_s)
        expired.add_metric([store], stats.expired)
        for consumer, keys in sorted(stats.consumers.items()):
            dead.add_metric([store, consumer], keys.dead)
            oldest.add_metric([store, consumer], keys.oldest_claim_s)
            lapsed.add_metric([store, consumer], keys.lapsed)
    return [dead, oldest, lapsed, expired, runs, waits]


def rendered(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """What a registry exports, and its content type.

    Args:
        registry: what is exported.
        accept: the header of the request, by which Prometheus says which format it reads.
    """
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def exporting(registry: CollectorRegistry = REGISTRY) -> CollectorRegistry:
    """The registry, with an `IdempotentCollector`: the application may have registered one."""
    with suppress(ValueError):  # its series are there
        registry.register(IdempotentCollector())
    return registry
