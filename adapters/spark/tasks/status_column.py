"""Mode dedup as a column: the function behind `idempotent_udf`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from idempotent.adapters.spark.keys import key_hash
from idempotent.adapters.spark.tasks.filters import statuses
from idempotent.adapters.spark.tasks.handle import RunHandle
from idempotent.adapters.spark.tasks.key_filter import KeyFilter


def status_function(handle: RunHandle) -> Callable[..., Any]:
    """The function for `arrow_udf`, which reads the kind of function from the annotations."""

    def decided(columns: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        keys = KeyFilter(handle)
        for arrays in columns:
            # Spark sends a single column as an array, not as a tuple of one.
            sent: Any = arrays
            lists = [array.to_pylist() for array in (sent if isinstance(sent, tuple) else (sent,))]
            hashes = [key_hash(handle.ref.consumer, each) for each in zip(*lists, strict=True)]
            yield statuses(keys.decide(hashes))

    return decided
