"""The result of one run of the Spark demo."""

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
    """The result of one run of the demo.

    Attributes:
        settings: of the run.
        stores: that it used.
        delivered: the content of the files.
        kills: the number of times the driver was killed.
        killed_after: the kills by the last step before them.
        seconds: from the first driver's start to the last one's end.
        files: the published Parquet files against the truth.
        table: the published table against the truth.
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
        """Whether both outputs are equal to the truth."""
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
