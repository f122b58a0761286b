"""Staging: what an attempt writes to a folder of its own, and the list of its files, which is all that is published."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from idempotent.adapters.spark.ledger.runs import RunRef
from idempotent.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# A session may say that rows of files that are gone or broken are left out: these have been counted.
_WHOLE: Final = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}


@dataclass(frozen=True, slots=True)
class Staged:
    """The rows that one attempt has staged in one folder. A file that comes later is not among them.

    Attributes:
        folder: as given to `stage`.
        path: of the attempt's own folder in it.
        files: URIs of the files, sorted.
        rows: in these files.
        format: of the files, as Spark names it.
        schema: of the rows, as Spark's JSON.
    """

    folder: str
    path: str
    files: tuple[str, ...]
    rows: int
    format: str
    schema: str

    def frame(self, spark: SparkSession) -> DataFrame:
        """The staged rows."""
        from pyspark.sql.types import StructType

        schema = StructType.fromJson(json.loads(self.schema))
        if not self.files:
            return spark.createDataFrame([], schema)
        # Spark reads a path as it is, but for the signs of a pattern, and gives URIs.
        paths = [_literal(unquote(file)) for file in self.files]
        return spark.read.format(self.format).options(**_WHOLE).schema(schema).load(paths)


class Output:
    """What an attempt has staged, and how many keys it should have claimed for that.

    Args:
        ref: the run and the attempt.
        manifest: what a PREPARED attempt has staged, as the ledger stores it; None: nothing.
    """

    def __init__(self, ref: RunRef, manifest: bytes | None) -> None:
        """Stage nothing yet."""
        self._ref = ref
        stored = json.loads(manifest or b"[]")
        self._staged = {each["folder"]: Staged(**each | {"files": tuple(each["files"])}) for each in stored}
        self._claimed: dict[DataFrame, int] = {}
        self._calls = 0
        self.bulk_rows = 0
        """Rows to publish whose keys are in Parquet, and not claimed one by one."""
        self.has_turn = False
        """Whether one claim is that of `bulk_dedup`'s turn, and not a row's."""

    @property
    def staged(self) -> tuple[Staged, ...]:
        """What is staged, a folder each."""
        return tuple(self._staged.values())

    @property
    def manifest(self) -> bytes:
        """What is staged, as the ledger stores it."""
        return json.dumps([asdict(each) for each in self.staged]).encode()

    @property
    def rows(self) -> int:
        """The rows that are staged, or else those whose keys were claimed."""
        return sum(each.rows for each in self.staged) or sum(self._claimed.values())

    @property
    def elsewhere(self) -> int:
        """Rows with their key in Parquet, not in the ledger, less one for the ledger's claim of `bulk_dedup`'s turn."""
        return self.bulk_rows - self.has_turn

    def staged_in(self, folder: str) -> Staged:
        """What is staged in this folder.

        Raises:
            ConfigurationError: no rows are staged there.
        """
        if folder not in self._staged:
            raise ConfigurationError(
                f"{self._ref} is past OPEN, and staged nothing in {folder}, but in: "
                f"{', '.join(self._staged) or 'no folder'}. A run that was PREPARED publishes what it has staged"
            )
        return self._staged[folder]

    def stage(self, df: DataFrame, folder: str, file_format: str) -> None:
        """Evaluate a frame once, and write its rows to a new folder in this one."""
        self._calls += 1
        path = f"{folder.rstrip('/')}/{self._ref.token}-{self._ref.epoch}-{self._calls}"
        df.write.format(file_format).mode("error").save(path)
        spark, schema = df.sparkSession, df.schema
        files = spark.read.format(file_format).schema(schema).load(_literal(path)).inputFiles()
        staged = Staged(folder, path, tuple(sorted(files)), 0, file_format, schema.json())
        # Counted in the files that are listed: a straggler's file may be among them, and then PREPARE refuses.
        self._staged[folder] = replace(staged, rows=staged.frame(spark).count())

    def claim(self, df: DataFrame) -> None:
        """Evaluate a frame once, and keep no rows."""
        self._claimed[df] = df.count()


def _literal(path: str) -> str:
    """A path in which nothing is the sign of a pattern."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)
