"""What rows of a run cost in a table by `publication.jdbc`, beside `DataFrame.write.jdbc` of the same rows.

python -m tests.bench.spark.tables --jar postgresql-42.6.1.jar
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import sqlalchemy as sa
import typer
from rich.console import Console

from idempotent.adapters.spark import IdempotentRun, StoreConfig
from idempotent.migrations import upgrade
from tests.adapters.spark.support import sessions
from tests.bench import servers

_PLAIN = "write.jdbc"


@dataclass(frozen=True, slots=True)
class Figure:
    """One way to write the rows.

    Attributes:
        way: for people.
        rows_a_second: median of the rounds.
        ratio: of its time to that of `write.jdbc` in the same round; median.
    """

    way: str
    rows_a_second: int
    ratio: float


def main(
    jar: Annotated[str, typer.Option()],
    rows: int = 100_000,
    rounds: int = 3,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Measure on PostgreSQL, and print a line for each way.

    Args:
        jar: the file of PostgreSQL's JDBC driver, which `write.jdbc` needs.
        rows: of one run.
        rounds: of each way, after one to warm up.
        as_json: print JSON instead.
    """
    with ExitStack() as stack:
        spark = sessions.classic(**{"spark.jars": jar})
        stack.callback(spark.stop)
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="idem-bench-")))
        server = servers.postgres()
        stack.callback(server.close)
        server.start()
        figures = _measure(spark, folder, server.url, rows, rounds)
    if as_json:
        typer.echo(json.dumps([asdict(figure) for figure in figures]))
    else:
        Console(highlight=False).print(*figures, sep="\n")


def _measure(spark: Any, folder: Path, url: str, rows: int, rounds: int) -> list[Figure]:
    from pyspark.sql import functions as F

    store = StoreConfig(url)
    upgrade(url)
    keys = F.concat(F.lit("order-"), F.lpad(F.col("id").cast("string"), 12, "0"))
    spark.range(0, rows, numPartitions=4).select(
        keys.alias("k"), F.col("id").cast("int").alias("amount")
    ).write.parquet(str(folder / "rows"))
    frame = spark.read.parquet(str(folder / "rows"))
    engine = sa.create_engine(url)
    place = engine.url
    java = f"jdbc:postgresql://{place.host or '127.0.0.1'}:{place.port}/{place.database}"
    login = {
        "user": place.username or "",
        "password": place.password or "",
        "driver": "org.postgresql.Driver",
    }
    with (
        IdempotentRun.begin(store, consumer="bench", run_id="rows") as run,
        run.publishing(rows=0) as publication,
    ):
        ways: dict[str, Callable[[], object]] = {
            _PLAIN: lambda: frame.write.jdbc(java, "written", "append", login),
            f"{_PLAIN}, reWriteBatchedInserts": lambda: frame.write.jdbc(
                f"{java}?reWriteBatchedInserts=true", "written", "append", login
            ),
            "publication.jdbc": lambda: publication.jdbc(frame, "written"),
            "publication.jdbc, rows are there": lambda: publication.jdbc(frame, "written"),
        }
        taken: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(rounds + 1):
            for way, work in ways.items():
                if not way.endswith("there"):
                    _empty(engine)
                began = time.monotonic()
                work()
                if number:
                    taken[way].append(time.monotonic() - began)
    engine.dispose()
    return [
        Figure(
            way,
            round(rows / statistics.median(seconds)),
            round(statistics.median(a / b for a, b in zip(seconds, taken[_PLAIN], strict=True)), 2),
        )
        for way, seconds in taken.items()
    ]


def _empty(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE IF EXISTS written"))
        connection.execute(sa.text("CREATE TABLE written (k TEXT PRIMARY KEY, amount INTEGER)"))


if __name__ == "__main__":
    typer.run(main)
