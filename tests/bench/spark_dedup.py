"""Rows a second through `run.dedup` and `bulk_dedup`, against mapInArrow identity on the same frame in the same run.

python tests/bench/spark_dedup.py --rows 2000000 --claims 10000000
"""

from __future__ import annotations

import json
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from idempotent.adapters.spark import IdempotentRun, StoreConfig, bulk_dedup
from idempotent.migrations import upgrade
from tests.services import PrivateMariaDb, PrivateRedis
from tests.spark import sessions


@dataclass(frozen=True, slots=True)
class Figure:
    """One step.

    Attributes:
        step: what was done.
        rows: how many.
        seconds: median of the rounds.
        ratio: to the identity of the same run.
    """

    step: str
    rows: int
    seconds: float
    ratio: float


def main(
    rows: int = 2_000_000,
    claims: int = 10_000_000,
    rounds: int = 3,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Measure, and print a table."""
    console = Console(stderr=as_json, highlight=False)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="idem-bench-")))
        with console.status("Starting the servers"):
            stores = _stores(stack)
            spark = sessions.classic(**{"spark.driver.memory": "3g"})
            stack.callback(spark.stop)
        with console.status(f"Making {rows:,} rows and {claims:,} claims"):
            frame = _rows(spark, rows, folder / "rows")
            bulk_store = StoreConfig(f"sqlite:///{folder / 'bulk.db'}")
            upgrade(bulk_store.url)
            _make_claims(spark, bulk_store, claims, folder / "claims")
        bench = _Bench(console, rows, rounds)
        bench.measure("mapInArrow identity", lambda: _read(frame.mapInArrow(_identity, frame.schema)))
        bench.measure("dropDuplicates", lambda: _read(frame.dropDuplicates(["k"])))
        for name, store in stores.items():
            for unique in (True, False):
                what = "unique" if unique else "in-run duplicates too"
                bench.measure(
                    f"run.dedup, {name}, {what}", lambda s=store, u=unique: _dedup(frame, s, unique=u)
                )
        bench.measure(
            f"bulk_dedup against {claims:,}, claims written",
            lambda: _bulk(frame, bulk_store, folder / "claims"),
        )
    if as_json:
        typer.echo(json.dumps([asdict(figure) for figure in bench.figures]))
    else:
        console.print(_table(bench.figures))


class _Bench:
    def __init__(self, console: Console, rows: int, rounds: int) -> None:
        self.figures: list[Figure] = []
        self._console = console
        self._rows = rows
        self._rounds = rounds

    def measure(self, step: str, work: Callable[[], object]) -> None:
        """The median, after a round that warms everything up."""
        seconds = []
        for number in range(self._rounds + 1):
            with self._console.status(f"{step}, round {number}"):
                began = time.monotonic()
                work()
                seconds.append(time.monotonic() - began)
        median = statistics.median(seconds[1:])
        base = self.figures[0].seconds if self.figures else median
        self.figures.append(Figure(step, self._rows, round(median, 3), round(median / base, 2)))
        self._console.print(f"{step}: {median:.2f} s, {median / base:.2f} x")


def _stores(stack: ExitStack) -> dict[str, StoreConfig]:
    redis, mariadb = PrivateRedis("--maxmemory-policy", "noeviction"), PrivateMariaDb()
    for server in (redis, mariadb):
        stack.callback(server.close)
        server.start()
    upgrade(mariadb.url)
    return {"Redis": StoreConfig(redis.url), "MariaDB": StoreConfig(mariadb.url)}


def _rows(spark: Any, count: int, path: Path) -> Any:
    from pyspark.sql import functions as F

    numbers = spark.range(count, numPartitions=8)
    text = F.concat(F.lit("order-"), F.lpad(F.col("id").cast("string"), 12, "0"))
    numbers.select(
        text.alias("k"), F.col("id").alias("seq"), F.repeat(F.lit("x"), 40).alias("payload")
    ).write.parquet(str(path))
    return spark.read.parquet(str(path))


def _make_claims(spark: Any, store: StoreConfig, count: int, path: Path) -> None:
    """A committed run of other keys, half of them in other files."""
    from pyspark.sql import functions as F

    keys = spark.range(1_000_000_000, 1_000_000_000 + count).select(
        F.concat(F.lit("order-"), "id").alias("k")
    )
    with IdempotentRun.begin(store, consumer="bench", run_id="before") as run:
        bulk_dedup(keys, claims=str(path), key="k", run=run, unique=True)
        with run.publishing():
            pass


def _dedup(frame: Any, store: StoreConfig, *, unique: bool) -> None:
    """All keys new: each round is another consumer."""
    with IdempotentRun.begin(store, consumer=f"bench-{secrets.token_hex(4)}", run_id="1") as run:
        _read(run.dedup(frame, key="k", order_by=["seq"], unique=unique))


def _bulk(frame: Any, store: StoreConfig, claims: Path) -> None:
    with IdempotentRun.begin(store, consumer="bench", run_id=secrets.token_hex(4)) as run:
        bulk_dedup(frame, claims=str(claims), key="k", run=run, unique=True)
        run.abort()


def _read(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _identity(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _table(figures: list[Figure]) -> Table:
    table = Table("step", "rows/s", "seconds", "against identity")
    for figure in figures:
        speed = f"{figure.rows / figure.seconds:,.0f}"
        table.add_row(figure.step, speed, f"{figure.seconds:.2f}", f"{figure.ratio:.2f} x")
    return table


if __name__ == "__main__":
    typer.run(main)
