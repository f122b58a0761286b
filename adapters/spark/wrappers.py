"""The functions that Spark calls on its executors, all made from a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa

from idempotent.adapters.spark.filtering import only_new
from idempotent.adapters.spark.handlers import Handlers
from idempotent.adapters.spark.keys import key_hash
from idempotent.adapters.spark.ledger.claims import OnConflict
from idempotent.adapters.spark.tasks.batches import gathered
from idempotent.adapters.spark.tasks.chunks import chunks
from idempotent.adapters.spark.tasks.deciding import KeyFilter
from idempotent.adapters.spark.tasks.handle import RunHandle
from idempotent.errors import ConfigurationError

T = TypeVar("T")
Key = str | Sequence[str] | Callable[[Any], Any]
"""Column or field names, or a function that takes a row and returns the key: one part, or a tuple of parts."""

MAX_RESULT_BYTES: Final = 64 * 1024


class Keys:
    """Key hashes of rows. Picklable if `key` is.

    Args:
        consumer: whose keys.
        key: see `Key`.
    """

    def __init__(self, consumer: str, key: Key) -> None:
        """Hash nothing yet."""
        if not callable(key) and not names_of(key):
            raise ConfigurationError("a key has at least one column")
        self._consumer = consumer
        self._key = key

    def of_row(self, row: Any) -> bytes:
        """The hash of one row's key. Raises MissingKeyError for a null key."""
        if callable(self._key):
            parts = self._key(row)
            return key_hash(self._consumer, parts if isinstance(parts, tuple) else (parts,))
        try:
            named = [row[name] for name in names_of(self._key)]
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise _no_such(names_of(self._key), f"a row such as {row!r:.200}") from error
        return key_hash(self._consumer, named)

    def of_batch(self, batch: pa.RecordBatch) -> list[bytes]:
        """The hashes of a batch's rows."""
        if callable(self._key):
            return [self.of_row(row) for row in batch.to_pylist()]
        missing = [name for name in names_of(self._key) if name not in batch.schema.names]
        if missing:
            raise _no_such(missing, ", ".join(batch.schema.names))
        columns = [batch.column(name).to_pylist() for name in names_of(self._key)]
        return [key_hash(self._consumer, parts) for parts in zip(*columns, strict=True)]


class PartitionFilter:
    """For `rdd.mapPartitions`, mode dedup."""

    def __init__(self, handle: RunHandle, keys: Keys) -> None:
        """Connect in the call."""
        self._handle = refuse_divert(handle)
        self._keys = keys

    def __call__(self, rows: Iterable[T]) -> Iterator[T]:
        """The new rows of one partition, lazily."""
        keys = KeyFilter(self._handle)
        for part in chunks(rows, self._handle.chunk):
            yield from keys.rows(part, map(self._keys.of_row, part))


class PartitionEffects:
    """For `foreachPartition` of RDDs and frames, mode effect."""

    def __init__(self, handle: RunHandle, keys: Keys, handler: Callable[[Any], object]) -> None:
        """Connect in the call."""
        self._handle = handle
        self._keys = keys
        self._handler = handler

    def __call__(self, rows: Iterable[Any]) -> None:
        """Handle one partition."""
        handlers = Handlers(self._handle)

        def handle(row: Any) -> None:
            self._handler(row)

        for part in chunks(rows, self._handle.chunk):
            first: dict[bytes, Any] = {}
            for row in part:
                first.setdefault(self._keys.of_row(row), row)
            handlers.run(first, handle)


class BatchKeyFilter:
    """For `mapInArrow`, mode dedup, where no earlier stage has computed hashes."""

    def __init__(self, handle: RunHandle, keys: Keys) -> None:
        """Connect in the call."""
        self._handle = refuse_divert(handle)
        self._keys = keys

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Filter one partition."""
        keys = KeyFilter(self._handle)
        for batch in gathered(batches, keys.chunk):
            yield only_new(batch, keys.decide(self._keys.of_batch(batch)))


class BatchReplay:
    """For `mapInArrow`, mode replay: a result for each row, the stored one for a key that was handled before."""

    def __init__(
        self,
        handle: RunHandle,
        keys: Keys,
        handler: Callable[[dict[str, Any]], Mapping[str, Any]],
        schema: pa.Schema,
    ) -> None:
        """Connect in the call."""
        self._handle = handle
        self._keys = keys
        self._handler = handler
        self._schema = schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Map one partition."""
        handlers = Handlers(self._handle)

        def handle(row: dict[str, Any]) -> bytes:
            data = stored(self._handler(row))
            # Before it counts as done: a result that nobody can emit would fail every later evaluation.
            self._as_batch([data])
            return data

        for batch in batches:
            hashes = self._keys.of_batch(batch)
            first: dict[bytes, dict[str, Any]] = {}
            for each, row in zip(hashes, batch.to_pylist(), strict=True):
                first.setdefault(each, row)
            results: dict[bytes, bytes | None] = {}
            for part in chunks(first.items(), self._handle.chunk):
                results |= handlers.run(dict(part), handle)
            yield self._as_batch([results[each] for each in hashes])

    def _as_batch(self, results: Sequence[bytes | None]) -> pa.RecordBatch:
        rows = [json.loads(result or b"null") for result in results]
        names = set(self._schema.names)
        for row in rows:
            if not isinstance(row, dict) or not names.issuperset(row):
                raise ConfigurationError(
                    f"a result does not fit the schema: {row!r:.200}, where a dict is wanted whose names are among "
                    f"{', '.join(self._schema.names)}"
                )
        try:
            return pa.RecordBatch.from_pylist(rows, schema=self._schema)
        except pa.ArrowException as error:
            raise ConfigurationError(f"a result does not fit the schema: {error}") from error


def stored(result: Any) -> bytes:
    """A result as it is kept.

    Raises:
        ConfigurationError: it is no JSON, or longer than 64 KB: return a pointer to it instead.
    """
    try:
        data = json.dumps(result, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"a result that is replayed must be JSON: {error}") from error
    if len(data) > MAX_RESULT_BYTES:
        raise ConfigurationError(
            f"a result of {len(data)} bytes; {MAX_RESULT_BYTES} is the most: store it elsewhere and return where"
        )
    return data


def _no_such(names: Sequence[str], there: str) -> ConfigurationError:
    return ConfigurationError(f"no column {', '.join(map(repr, names))} for the key in {there}")


def names_of(key: str | Sequence[str]) -> list[str]:
    """Column names, of which one may stand alone."""
    return [key] if isinstance(key, str) else list(key)


def refuse_divert(handle: RunHandle) -> RunHandle:
    """The handle, unless it puts rows aside: a filter would lose them."""
    if handle.on_conflict is OnConflict.DIVERT:
        raise ConfigurationError(
            'on_conflict="divert" needs run.dedup(..., emit="status"), whose rows say "conflict": '
            "here a row that is put aside would be lost"
        )
    return handle
