"""Chunks: slices of rows, of one round trip each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from idempotent.errors import ConfigurationError

T = TypeVar("T")


def chunks(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of at most `size` rows, in order; the last may be shorter."""
    source = iter(rows)
    while part := list(islice(source, size)):
        yield part


def checked_chunk(size: int) -> int:
    """The size of a chunk. Raises ConfigurationError: less than 1."""
    if size < 1:
        raise ConfigurationError(f"chunk must be at least 1, not {size}")
    return size
