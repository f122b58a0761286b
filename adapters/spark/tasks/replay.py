"""BatchReplay: mode replay, a result for each row, which is stored with the row's key."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from idempotent.adapters.spark.tasks.handle import RunHandle
from idempotent.adapters.spark.tasks.handlers import Handlers
from idempotent.adapters.spark.tasks.ledgers import refuse_another_batch
from idempotent.adapters.spark.tasks.row_keys import RowKeys, first_of_each
from idempotent.errors import ConfigurationError

MAX_RESULT_BYTES: Final = 64 * 1024


class BatchReplay:
    """For `mapInArrow`: the handler's result for a new key, the stored result for a known one. Picklable."""

    def __init__(
        self,
        handle: RunHandle,
        keys: RowKeys,
        handler: Callable[[dict[str, Any]], Mapping[str, Any]],
        schema: pa.Schema,
    ) -> None:
        """Connect only when called."""
        self._handle = handle
        self._keys = keys
        self._handler = handler
        self._schema = schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Map one partition."""
        # A run, and with it the stored results, would be as old as the stream, and in time older than their retention.
        refuse_another_batch(self._handle)
        handlers = Handlers(self._handle)
        for batch in batches:
            hashes = self._keys.of_batch(batch)
            rows = first_of_each(hashes, batch.to_pylist())
            results: dict[bytes, bytes | None] = {}
            for part in self._handle.chunks(rows.items()):
                results |= handlers.run(dict(part), self._call)
            yield self._as_batch([results[each] for each in hashes])

    def _call(self, row: dict[str, Any]) -> bytes:
        data = _encoded(self._handler(row))
        # Checked before the key is done: a stored result that fits no row would fail every later evaluation.
        self._as_batch([data])
        return data

    def _as_batch(self, results: Sequence[bytes | None]) -> pa.RecordBatch:
        rows = [json.loads(result or b"null") for result in results]
        names = set(self._schema.names)
        for row in rows:
            if not isinstance(row, dict) or not names.issuperset(row):
                raise ConfigurationError(
                    f"a result does not fit the schema: {row!r:.200}; return a dict whose names are among "
                    f"{', '.join(self._schema.names)}"
                )
        try:
            return pa.RecordBatch.from_pylist(rows, schema=self._schema)
        except pa.ArrowException as error:
            raise ConfigurationError(f"a result does not fit the schema: {error}") from error


def _encoded(result: Any) -> bytes:
    """A handler's result as the store keeps it.

    Raises:
        ConfigurationError: the result is not JSON, or longer than 64 KB.
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
