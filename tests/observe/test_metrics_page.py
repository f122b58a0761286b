"""docs/reference/metrics.md has every series that is exported, with its type and labels."""

import re
from pathlib import Path

from prometheus_client.samples import Sample

from idempotent import Registry
from idempotent.admin import StoreStats, WaitingKeys
from idempotent.checkers import MemoryChecker
from idempotent.observe import Counters, OutboxMeasures, OutboxStats
from idempotent.observe.counting import stores
from idempotent.observe.prometheus import IdempotentCollector
from idempotent.observe.running import Load, workers

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"\| `(idempotent_\w+)` \| (\w+) \| (.*?) \|")


def one_load():
    one = {"orders:default": 1}
    return Load(True, one, one, {"orders:default": 2.0}, {("orders:default", "orders-0"): 1}, one)


def test_the_page_names_each_series_its_type_and_its_labels():
    counters, outboxes = Counters(), OutboxMeasures()
    registry = Registry(observers=[counters])
    registry.consumer("orders", checker=MemoryChecker())(lambda message: None)
    outboxes.measured("shop_outbox", OutboxStats(1, 2.0, 0, 0, 0, 1))
    stores.measured("page", StoreStats({"orders:default": WaitingKeys(1, 1, 1.0)}, 1, {"prepared": 1}, 2.0))
    workers.add(one_load)
    try:
        exported = {}
        for family in IdempotentCollector(counters, outboxes).collect():
            assert family.samples, f"{family.name} has no series"
            name = f"{family.name}_total" if family.type == "counter" else family.name
            exported[name] = (family.type, _labels(family.samples[0]))
    finally:
        stores.forget("page")
        workers.remove(one_load)
    written = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in ROW.findall(PAGE.read_text())
    }
    assert written == exported


def _labels(sample: Sample) -> tuple[str, ...]:
    return tuple(name for name in sample.labels if name != "le")
