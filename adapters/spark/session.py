"""Settings and accumulators of a Spark session, classic or Connect."""

from __future__ import annotations

from typing import Any

from idempotent.adapters.spark.ledger.run_claims import Verdict
from idempotent.adapters.spark.tasks.counters import Counters
from idempotent.errors import ConfigurationError


def classic_context() -> Any:
    """The SparkContext of this process; None on Spark Connect, and before a session was made."""
    from pyspark import SparkContext
    from pyspark.sql.utils import is_remote

    if is_remote():
        # A local Connect server runs in this process, but its context is not that of the frames here.
        return None
    return SparkContext._active_spark_context  # noqa: SLF001 - the public getOrCreate would create a context


def new_counters() -> Counters | None:
    """Counters; None on Spark Connect, which has no accumulators."""
    context = classic_context()
    return None if context is None else Counters(context, Verdict)


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
