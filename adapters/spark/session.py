"""Settings and accumulators of a Spark session, classic or Connect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from idempotent.adapters.spark.tasks.handle import BATCH_PROPERTY, Counters, Sums
from idempotent.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# One for all runs of a context: Spark never forgets an accumulator.
_accumulators: Final[WeakKeyDictionary[Any, Any]] = WeakKeyDictionary()


def classic_context() -> Any:
    """The SparkContext of this process; None on Spark Connect, and before a session was made."""
    from pyspark import SparkContext
    from pyspark.sql.utils import is_remote

    if is_remote():
        # A local Connect server runs in this process, but its context is not that of the frames here.
        return None
    return SparkContext._active_spark_context  # noqa: SLF001 - the public getOrCreate would create a context


def new_counters(token: int) -> Counters | None:
    """Counters of a run; None on Spark Connect, which has no accumulators."""
    context = classic_context()
    if context is None:
        return None
    if context not in _accumulators:
        sums = Sums()
        _accumulators[context] = context.accumulator(sums.zero(None), sums)
    return Counters(_accumulators[context], token)


def batch_number() -> str | None:
    """The number of the micro-batch that this thread processes; None outside of one, and on Spark Connect."""
    context = classic_context()
    return None if context is None else context.getLocalProperty(BATCH_PROPERTY)


def refuse_streaming(df: DataFrame) -> None:
    """Refuse a streaming frame.

    Raises:
        ConfigurationError: the frame is a streaming one, whose micro-batches would all be one run.
    """
    if df.isStreaming:
        raise ConfigurationError(
            "a streaming frame has many micro-batches, and in one run they would drop nothing of each other: use "
            "stream.writeStream.foreachBatch(foreach_batch(...)), which makes each of them a run"
        )


def refuse_speculation(*, allowed: bool) -> None:
    """Refuse effects under speculation, unless allowed.

    Raises:
        ConfigurationError: speculation is on. A copy of a task waits for the first to finish, so it gains nothing, and
            an effect whose lease ends under it happens twice.
    """
    if not allowed and _setting("spark.speculation", "false").lower() == "true":
        raise ConfigurationError(
            "spark.speculation is on: a speculative copy of a task would wait for the first one, or repeat its "
            "effects when a lease ends. Turn it off, or say allow_speculation=True if effects may repeat"
        )


def _setting(name: str, default: str) -> str:
    context = classic_context()
    if context is not None:
        return str(context.getConf().get(name, default))
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    return default if session is None else str(session.conf.get(name, default))
