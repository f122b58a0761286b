"""The functions that a program gives to Spark, made from a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pyarrow as pa

from idempotent.adapters.spark.keys import key_hash
from idempotent.adapters.spark.run import IdempotentRun
from idempotent.adapters.spark.session import refuse_speculation
from idempotent.adapters.spark.tasks.filters import BatchFilter, KeyFilter, PartitionFilter, statuses
from idempotent.adapters.spark.tasks.handlers import (
    BatchReplay,
    Handlers,
    PartitionEffects,
    TransactionalHandlers,
)
from idempotent.adapters.spark.tasks.row_keys import Key, RowKeys
from idempotent.errors import ConfigurationError
from idempotent.validation import flag

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

T = TypeVar("T")


def idempotent_partitions(
    run: IdempotentRun, *, key: Key, chunk: int | None = None, frame: str | None = None
) -> Callable[[Iterable[T]], Iterator[T]]:
    """For `rdd.mapPartitions` (classic Spark): the rows whose keys are new to the run's consumer.

    Keys must be unique in the run: rows of one key in it are all emitted. Guarantee: see `IdempotentRun`.

    Args:
        run: the run that claims the keys.
        key: names of fields, or a function of a row.
        chunk: keys in one round trip; default: the run's.
        frame: see `IdempotentRun.dedup`. What this call returns is for one frame.
    """
    return PartitionFilter(run.frame(frame).sized(chunk), RowKeys(run.consumer, key))


def idempotent_foreach(
    run: IdempotentRun,
    *,
    key: Key,
    handler: Callable[..., object],
    batch_size: int | None = None,
    transactional: bool = False,
    chunk: int | None = None,
    allow_speculation: bool = False,
) -> Callable[[Iterable[Any]], None]:
    """For `foreachPartition` of RDDs (classic) and of frames (classic and Connect): an effect for each key.

    Guarantee (mode effect): when the job has succeeded, the handler has finished at least once for each key; exactly
    once if no lease ends under a live holder and no process dies between an effect and its record. Any of the rows of a
    key may be the one that is handled. A handler that raises fails the task, and Spark's retry handles its key again.

    With `transactional` the promise is: when the job has succeeded, what the handler has written through its connection
    is there once for each key, whatever was killed meanwhile.

    Args:
        run: the run that holds the keys.
        key: names of fields, or a function of a row.
        handler: called with a row, or with `batch_size` a list of rows; makes the effect. With `transactional` also
            with a SQLAlchemy Connection, which it must not commit.
        batch_size: the most rows of one call, whose keys are all different. What such a call has done is recorded as a
            whole: if it raises, none of it is, and all its keys are handled again.
        transactional: the claims of a call commit in one transaction with what it writes through its connection, which
            is to the ledger's own database.
        chunk: keys acquired together; default: the run's, or `batch_size` if that is more; with `transactional` always
            `batch_size`.
        allow_speculation: accept a session with `spark.speculation` on, as `transactional` does.

    Raises:
        ConfigurationError: speculation is on and not allowed, a key without a column, an invalid `batch_size`, or
            `transactional` with a ledger in Redis or with a `chunk`.
    """
    refuse_speculation(allowed=allow_speculation or flag(transactional, "transactional"))
    keys = RowKeys(run.consumer, key)
    if not transactional:
        return PartitionEffects(run.handle.sized(chunk, batch_size), keys, handler, Handlers)
    if run.handle.store.is_redis:
        raise ConfigurationError(
            "transactional=True needs the ledger in the SQL database that the handler writes to, and this one is in "
            "Redis: begin the run with a StoreConfig of that database, or leave transactional out"
        )
    if chunk is not None:
        raise ConfigurationError("chunk cannot go with transactional=True: it is batch_size there")
    handle = run.handle.sized(batch_size or 1, batch_size)
    return PartitionEffects(handle, keys, handler, TransactionalHandlers)


def idempotent_batches(
    run: IdempotentRun,
    *,
    key: Key,
    handler: Callable[[Any], Mapping[str, Any] | Sequence[Mapping[str, Any]]] | None = None,
    mode: Literal["dedup", "replay"] = "dedup",
    schema: StructType | None = None,
    batch_size: int | None = None,
    chunk: int | None = None,
    frame: str | None = None,
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """For `df.mapInArrow` (classic and Connect).

    - `mode="dedup"`: the rows whose keys are new. Keys must be unique in the run, as `run.dedup` makes them.
      Guarantee: see `IdempotentRun`.
    - `mode="replay"`: `handler(row)` for each key, and its stored result for every later row of the key: one row out
      for each row in. Guarantee: a key has one recorded result; the handler's effect happens at least once.

    Args:
        run: the run that claims the keys.
        key: names of columns, or a function of a row as a dict.
        handler: replay: returns the output row as a dict of JSON values, at most 64 KB.
        mode: see above.
        schema: replay: of the output rows, as given to `mapInArrow`.
        batch_size: replay: the most rows of one call: the handler gets a list of rows with different keys, and returns
            a list of their output rows.
        chunk: keys in one round trip; default: the run's.
        frame: dedup: see `IdempotentRun.dedup`. What this call returns is for one frame; in a stream tasks refuse it.

    Raises:
        ConfigurationError: arguments that contradict each other, or a key without a column.
    """
    handle, keys = run.frame(frame).sized(chunk, batch_size), RowKeys(run.consumer, key)
    if mode == "dedup":
        if handler is not None or schema is not None or batch_size is not None:
            raise ConfigurationError('handler, schema and batch_size go with mode="replay": leave them out')
        return BatchFilter(handle, keys)
    if mode != "replay":
        raise ConfigurationError(
            f"mode must be dedup or replay, not {mode!r}; effects are for idempotent_foreach"
        )
    if handler is None or schema is None:
        raise ConfigurationError('mode="replay" needs a handler, and the schema that mapInArrow gets')
    from pyspark.sql.pandas.types import to_arrow_schema

    return BatchReplay(handle, keys, handler, to_arrow_schema(schema))


def idempotent_udf(run: IdempotentRun, *, frame: str | None = None) -> Any:
    """A function of a key's columns that says `new`, `duplicate` or `conflict`. Non-deterministic to Spark.

    A second evaluation gives the same answers, because the run owns the claims. But Spark skips a column that is not
    read, and evaluates it for rows that a later `limit` drops: prefer `run.dedup`. Keys must be unique in the run.

    Args:
        run: the run that claims the keys.
        frame: see `IdempotentRun.dedup`. The function is for one frame.
    """
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

    handle = run.frame(frame)

    # `arrow_udf` reads the kind of function from the annotations.
    def decided(columns: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        keys = KeyFilter(handle)
        for arrays in columns:
            # Spark sends a single column as an array, not as a tuple of one.
            sent: Any = arrays
            lists = [array.to_pylist() for array in (sent if isinstance(sent, tuple) else (sent,))]
            hashes = [key_hash(handle.ref.consumer, each) for each in zip(*lists, strict=True)]
            yield statuses(keys.decide(hashes))

    return arrow_udf(decided, "string").asNondeterministic()
