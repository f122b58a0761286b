"""PartitionEffects: mode effect, the function that Spark calls with the rows of a partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from idempotent.adapters.spark.tasks.chunks import chunks
from idempotent.adapters.spark.tasks.handle import RunHandle
from idempotent.adapters.spark.tasks.handlers import Handlers
from idempotent.adapters.spark.tasks.row_keys import RowKeys, first_of_each


class PartitionEffects:
    """For `foreachPartition` of RDDs and frames. Picklable."""

    def __init__(self, handle: RunHandle, keys: RowKeys, handler: Callable[[Any], object]) -> None:
        """Connect only when called."""
        self._handle = handle
        self._keys = keys
        self._handler = handler

    def __call__(self, rows: Iterable[Any]) -> None:
        """Handle one partition."""
        handlers = Handlers(self._handle)
        for part in chunks(rows, self._handle.chunk):
            handlers.run(first_of_each(map(self._keys.of_row, part), part), self._call)

    def _call(self, row: Any) -> None:
        """Call the handler, and store none of what it returns."""
        self._handler(row)
