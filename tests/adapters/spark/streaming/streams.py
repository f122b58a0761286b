"""A stream over files, one micro-batch for each, and what its handler publishes."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.adapters.spark.support.patience import patiently

SCHEMA = "id bigint, text string"
CONSUMER = "orders-v1"


@dataclass(frozen=True)
class Stream:
    """The folders of one test."""

    folder: Path

    @property
    def staging(self) -> str:
        return str(self.folder / "staging")

    @property
    def out(self) -> str:
        return str(self.folder / "out")

    def arrives(self, name: str, ids: Iterable[int]) -> None:
        """A new file. Spark takes them by their times."""
        source = self.folder / "in"
        source.mkdir(parents=True, exist_ok=True)
        at = 1_700_000_000 + len(list(source.iterdir()))
        hidden = self.folder / f"{name}.json"
        hidden.write_text("".join(json.dumps({"id": each, "text": f"order {each}"}) + "\n" for each in ids))
        os.utime(hidden, (at, at))
        hidden.rename(source / hidden.name)

    def query(
        self, spark: Any, process: Callable[[Any, int], None], *, checkpoint: str = "checkpoint"
    ) -> Any:
        """Started; it ends when all files are processed."""
        frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.folder / "in"))
        writer = frame.writeStream.foreachBatch(process).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(self.folder / checkpoint)).start()

    def run(self, spark: Any, process: Callable[[Any, int], None], *, checkpoint: str = "checkpoint") -> None:
        patiently(lambda: self.query(spark, process, checkpoint=checkpoint).awaitTermination())

    def published(self) -> Mapping[str, Counter[int]]:
        """Ids by run."""
        from pyarrow import parquet

        return {
            folder.name.partition("=")[2]: Counter(
                each
                for file in folder.glob("*.parquet")
                for each in parquet.read_table(file)["id"].to_pylist()
            )
            for folder in Path(self.out).glob("run_id=*")
        }


def publish_to(out: str) -> Callable[[Any, Any], None]:
    """A handler that writes a folder named after the run. Travels to other processes by value."""

    def publish(new: Any, publication: Any) -> None:
        assert new.count() == sum(staged.rows for staged in publication.staged)
        publication.copy_to(f"{out}/run_id={publication.run_id}")

    return publish
