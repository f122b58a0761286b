"""RowKeys: the key hashes of rows, computed in a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from idempotent.adapters.spark.keys import key_hash, names_of
from idempotent.errors import ConfigurationError

T = TypeVar("T")
Key: TypeAlias = str | Sequence[str] | Callable[[Any], Any]
"""Column or field names, or a function that takes a row and returns the key: one part, or a tuple of parts."""


class RowKeys:
    """Key hashes of rows. Picklable if `key` is.

    Args:
        consumer: whose keys.
        key: see `Key`.

    Raises:
        ConfigurationError: a key without a column.
    """

    def __init__(self, consumer: str, key: Key) -> None:
        """Check the names."""
        if not callable(key) and not names_of(key):
            raise ConfigurationError("a key has at least one column")
        self._consumer = consumer
        self._key = key

    def of_row(self, row: Any) -> bytes:
        """The hash of one row's key.

        Raises:
            MissingKeyError: a part of the key is null.
            ConfigurationError: the row has no such field.
        """
        if callable(self._key):
            parts = self._key(row)
            return key_hash(self._consumer, parts if isinstance(parts, tuple) else (parts,))
        try:
            named = [row[name] for name in names_of(self._key)]
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise _missing_column(names_of(self._key), _fields_of(row)) from error
        return key_hash(self._consumer, named)

    def of_batch(self, batch: pa.RecordBatch) -> list[bytes]:
        """The hashes of a batch's rows, aligned. Raises as `of_row`."""
        if callable(self._key):
            return [self.of_row(row) for row in batch.to_pylist()]
        missing = [name for name in names_of(self._key) if name not in batch.schema.names]
        if missing:
            raise _missing_column(missing, ", ".join(batch.schema.names))
        columns = [batch.column(name).to_pylist() for name in names_of(self._key)]
        return [key_hash(self._consumer, parts) for parts in zip(*columns, strict=True)]


def first_of_each(hashes: Iterable[bytes], rows: Iterable[T]) -> dict[bytes, T]:
    """The first row of each key, by key hash, in the order of the rows."""
    first: dict[bytes, T] = {}
    for each, row in zip(hashes, rows, strict=True):
        first.setdefault(each, row)
    return first


def _fields_of(row: Any) -> str:
    """The names of a row's fields, if it has some. No values: the error is logged where others read it."""
    names = getattr(row, "__fields__", None) or (row.keys() if isinstance(row, Mapping) else ())
    return ", ".join(map(str, names)) or f"a row of type {type(row).__name__}"


def _missing_column(names: Sequence[str], where: str) -> ConfigurationError:
    return ConfigurationError(f"no column {', '.join(map(repr, names))} for the key in {where}")
