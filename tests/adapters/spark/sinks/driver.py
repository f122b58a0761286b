"""A driver that publishes to tables, to be killed: `python -m tests.adapters.spark.sinks.driver JOB`.

It does one run for each death of its Job, each into a table of its own, in a thread that halts at its point of death.
The last run dies as soon as something of it can be seen in its table, and its process with it: one SIGKILL ends runs at
every step.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa

from idempotent.adapters.spark import Publication, StoreConfig
from idempotent.testing.crashpoints import CrashPlan
from tests.adapters.spark.programs.killed_driver import Halt
from tests.adapters.spark.support import sessions
from tests.adapters.spark.support.steps import Step, stepped

ROWS = 300
RUN_ID = "2026-11-29"
MODULE = "tests.adapters.spark.sinks.driver"
_BATCH = 50
_SLOW_S = 6.0


@dataclass(frozen=True)
class Job:
    """The work of one driver.

    Attributes:
        sink: the name of the method of Publication.
        where: the database's URL, or the folder of the tables.
        store: the arguments of its StoreConfig.
        staging: a folder.
        deaths: by consumer, whose name is that of its table, where its run dies, in the words of CrashPlan; or, of the
            last one, what is to be seen in its table then: see `seen`. Empty: it does not die.
        lease_s: of the runs.
        takeover: whether it waits for no lease.
        settings: of the Spark session.
        strike: a point, seconds, and a signal: so long after the point the whole driver gets it.
    """

    sink: str
    where: str
    store: dict[str, Any]
    staging: str
    deaths: dict[str, str]
    lease_s: float = 60.0
    takeover: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    strike: tuple[str, float, int] | None = None

    @property
    def words(self) -> list[str]:
        return ["-m", MODULE, json.dumps(asdict(self))]

    def table(self, consumer: str) -> str:
        return {"delta": f"{self.where}/{consumer}", "iceberg": f"ice.db.{consumer}"}.get(self.sink, consumer)

    def seen(self, consumer: str, what: str) -> bool:
        """Whether the table has rows; or files; or files of a commit, which are in a folder of their own."""
        if what == "rows":
            with _engine(self.where).connect() as connection:
                return bool(connection.scalar(sa.text(f"SELECT COUNT(*) FROM {consumer}")))
        of_commits = {"delta": "_delta_log/*.json", "iceberg": "metadata/v2.metadata.json"}[self.sink]
        folder = Path(self.where) / ("" if self.sink == "delta" else "db") / consumer
        return any(folder.glob(of_commits if what == "commit" else "**/*.parquet"))


@functools.cache
def _engine(url: str) -> sa.Engine:
    return sa.create_engine(url)


class Slow:
    """For `mapInArrow`: of the first partition nothing waits, and the others wait until it can be seen."""

    def __call__(self, batches: Any) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        for number, batch in enumerate(batches):
            if number == 1 and context is not None and context.partitionId():
                time.sleep(_SLOW_S)
            yield batch


def frame_of(spark: Any, consumer: str) -> Any:
    from pyspark.sql import functions as F

    return spark.range(ROWS, numPartitions=2).select(
        F.concat(F.lit(f"{consumer}-"), F.col("id").cast("string")).alias("k"),
        F.col("id").cast("int").alias("v"),
    )


def do(
    spark: Any,
    job: Job,
    consumer: str,
    step: Step = lambda function, _: function,
    through: Callable[[Any], Any] = lambda frame: frame,
) -> None:
    """One run, from begin to commit."""
    with stepped(step).begin(
        StoreConfig(**job.store),
        consumer=consumer,
        run_id=RUN_ID,
        chunk=_BATCH,
        lease_s=job.lease_s,
        takeover=job.takeover,
    ) as run:
        if run.is_committed:
            return
        step(lambda: None, "begin")()
        staged = run.stage(
            run.dedup(frame_of(spark, consumer), key="k", unique=True), f"{job.staging}/{consumer}"
        )

        def publish(publication: Publication) -> None:
            options = {"url": job.where} if job.sink == "jdbc" else {}
            put = step(getattr(publication, job.sink), "publish")
            put(through(staged), job.table(consumer), **options)

        run.publish(publish)


def strike(number: int = signal.SIGKILL) -> None:
    """The JVM and its Python workers first: what is left of a driver goes on for a while."""
    me = psutil.Process()
    for process in (*me.children(recursive=True), me):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


class Strikes:
    """Puts a point before and after functions, as Halt does; soon after one of them the driver is struck."""

    def __init__(self, point: str, delay_s: float, number: int) -> None:
        self._point = point
        self._timer = threading.Timer(delay_s, strike, [number])
        self._timer.daemon = True

    def around(self, function: Callable[..., Any], step: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if self._point == f"before_{step}":
                self._timer.start()
            answer = function(*args, **kwargs)
            if self._point == f"after_{step}":
                self._timer.start()
            return answer

        return wrapped


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    spark = sessions.classic(
        **sessions.QUICK | {"spark.sql.execution.arrow.maxRecordsPerBatch": str(_BATCH)} | job.settings
    )
    if job.sink == "iceberg":
        for consumer in job.deaths:
            spark.sql(f"CREATE TABLE IF NOT EXISTS {job.table(consumer)} (k STRING, v INT) USING iceberg")
    for consumer, at in job.deaths.items():
        if not at:
            around = {"step": Strikes(*job.strike).around} if job.strike else {}
            do(spark, job, consumer, **around)
        elif "_" in at:
            halt = Halt(CrashPlan.parse(at))
            threading.Thread(target=do, args=(spark, job, consumer, halt.around), daemon=True).start()
            halt.reached.wait()
        else:
            threading.Thread(target=_die_when, args=(job, consumer, at), daemon=True).start()
            do(spark, job, consumer, through=lambda frame: frame.mapInArrow(Slow(), frame.schema))
            os._exit(0)
    if job.sink != "jdbc":
        print(json.dumps({consumer: rows_in(spark, job, consumer) for consumer in job.deaths}))  # noqa: T201


def rows_in(spark: Any, job: Job, consumer: str) -> list[tuple[int, str]]:
    table = job.table(consumer)
    frame = spark.table(table) if job.sink == "iceberg" else spark.read.format(job.sink).load(table)
    return sorted((row["v"], row["k"]) for row in frame.collect())


def _die_when(job: Job, consumer: str, what: str) -> None:
    while not job.seen(consumer, what):
        time.sleep(0.002)
    strike()


if __name__ == "__main__":
    main()
