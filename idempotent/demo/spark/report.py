"""What a run of the Spark demo came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from idempotent.demo.spark.deliveries import Delivered
from idempotent.demo.spark.settings import SparkSettings
from idempotent.demo.spark.stores import SparkStores
from idempotent.demo.truth import Comparison, Totals


@dataclass(frozen=True, slots=True)
class SparkReport:
    """One run.

    Attributes:
        delivered: what the files held.
        kills: of drivers.
        killed_after: these, by the step that was done last.
        seconds: from the first driver's start to the last one's end.
        files: the published Parquet files against the truth.
        table: the table against it.
    """

    settings: SparkSettings
    stores: SparkStores
    delivered: Delivered
    kills: int
    killed_after: Mapping[str, int]
    seconds: float
    files: Comparison
    table: Comparison

    @property
    def truth(self) -> Totals:
        """The sums over the data set."""
        return self.files.truth

    @property
    def kept_promise(self) -> bool:
        """Both outputs are equal to the truth."""
        return self.files.equal and self.table.equal

    def as_json(self) -> dict[str, Any]:
        """For `json.dumps`."""
        files, table = asdict(self.files), asdict(self.table)
        del files["truth"], table["truth"]
        return {
            "ok": self.kept_promise,
            "url": self.stores.ledger.where,
            **asdict(self.settings),
            "kills": self.kills,
            "killed_after": dict(self.killed_after),
            "delivered": asdict(self.delivered),
            "seconds": round(self.seconds, 1),
            "truth": asdict(self.truth),
            "parquet": {**files, "equal": self.files.equal},
            "table": {**table, "equal": self.table.equal},
        }
