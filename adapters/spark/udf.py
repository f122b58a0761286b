"""Mode dedup as a column function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from .filtering import KeyFilter
from .handle import RunHandle
from .keys import key_hash


def status_function(handle: RunHandle, parts: int) -> Callable[..., Any]:
    """The function for `arrow_udf`, with the annotations by which that knows its kind."""

    def statuses(columns: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        keys = KeyFilter(handle)
        for arrays in columns:
            lists = [array.to_pylist() for array in arrays]
            hashes = [key_hash(handle.ref.consumer, each) for each in zip(*lists, strict=True)]
            yield pa.array([fate.status for fate in keys.decide(hashes)], pa.string())

    def status(column: Iterator[pa.Array]) -> Iterator[pa.Array]:
        return statuses((array,) for array in column)

    return status if parts == 1 else statuses
