"""Chunks: slices of rows, of one round trip each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from idempotent.choices import whole

T = TypeVar("T")


def chunks(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of at most `size` rows, in order; the last may be shorter."""
    source = iter(rows)
    while part := list(islice(source, size)):
        yield part


def checked_chunk(size: int) -> int:
    """The size of a chunk. Raises ConfigurationError: not a whole number from 1."""
    return whole(size, "chunk")
