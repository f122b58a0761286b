"""How long a million new keys take as the keys that are kept grow, and how many bytes a key has.

python -m tests.bench.spark.growth --millions 10 --bulk 1,10,100
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import sqlalchemy as sa
import typer
from rich.console import Console
from rich.table import Table

from idempotent.adapters.spark import IdempotentRun, StoreConfig, bulk_dedup
from idempotent.migrations import upgrade
from tests.bench import spark_dedup

MILLION = 1_000_000
_CONSUMER = "bench"


@dataclass(frozen=True, slots=True)
class Figure:
    """A run of a million keys.

    Attributes:
        store: for people.
        kept: keys before the run, in millions.
        what: of the keys: "new", or "known".
        seconds: from begin to commit.
        ratio: to `mapInArrow` identity over the same frame, just before.
        bytes_a_key: of all keys that are kept afterwards, with indexes.
    """

    store: str
    kept: int
    what: str
    seconds: float
    ratio: float
    bytes_a_key: int


def main(
    millions: int = 10,
    bulk: str = "1,10",
    stores: str = ",".join(spark_dedup.STORES),
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Measure, and print a table.

    Args:
        millions: of keys that each store has in the end.
        bulk: millions of keys in Parquet for bulk_dedup, with commas.
        stores: some of redis,mariadb,postgresql, with commas.
        as_json: print JSON instead.
    """
    console = Console(stderr=as_json, highlight=False)
    figures: list[Figure] = []

    def add(figure: Figure) -> None:
        figures.append(figure)
        console.print(figure)

    with ExitStack() as stack:
        spark = stack.enter_context(spark_dedup.session())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="idem-bench-")))
        # Warms Spark's workers up.
        _against_identity(_keys(spark, 0, MILLION), lambda frame: frame.count())
        for name in filter(None, stores.split(",")):
            for figure in _filled(spark, name, millions):
                add(figure)
        for kept in map(int, filter(None, bulk.split(","))):
            add(_bulk(spark, folder / str(kept), kept))
    if as_json:
        typer.echo(json.dumps([asdict(figure) for figure in figures]))
        return
    table = Table("store", "millions kept", "a million keys", "seconds", "against identity", "bytes a key")
    for each in figures:
        numbers = f"{each.seconds:.1f}", f"{each.ratio:.1f} x", str(each.bytes_a_key)
        table.add_row(each.store, str(each.kept), each.what, *numbers)
    console.print(table)


def _filled(spark: Any, name: str, millions: int) -> Iterator[Figure]:
    """A million new keys a run, and then one run of a million keys that are kept."""
    server = spark_dedup.STORES[name]()
    try:
        server.start()
        store = StoreConfig(server.url)
        if not store.is_redis:
            upgrade(store.url)
        for number in range(millions + 1):
            is_new = number < millions
            frame = _keys(spark, number % millions * MILLION, MILLION)

            def work(frame: Any, run_id: str = f"r{number}", rows: int = MILLION * is_new) -> None:
                with IdempotentRun.begin(store, consumer=_CONSUMER, run_id=run_id) as run:
                    spark_dedup.read(run.dedup(frame, key="k", unique=True))
                    with run.publishing(rows=rows):
                        pass

            seconds, ratio = _against_identity(frame, work)
            size = _bytes(store) // (min(number + 1, millions) * MILLION)
            yield Figure(server.name, number, "new" if is_new else "known", seconds, ratio, size)
    finally:
        server.close()


def _bulk(spark: Any, folder: Path, millions: int) -> Figure:
    """A million new keys against those of one committed run."""
    store, claims = StoreConfig(f"sqlite:///{folder}.db"), str(folder)
    upgrade(store.url)

    def work(frame: Any, run_id: str = "r1", rows: int = MILLION) -> None:
        with IdempotentRun.begin(store, consumer=_CONSUMER, run_id=run_id) as run:
            bulk_dedup(frame, claims=claims, key="k", run=run, unique=True)
            with run.publishing(rows=rows):
                pass

    work(_keys(spark, MILLION, millions * MILLION), "before", millions * MILLION)
    size = sum(file.stat().st_size for file in folder.rglob("*.parquet")) // (millions * MILLION)
    seconds, ratio = _against_identity(_keys(spark, 0, MILLION), work)
    return Figure("bulk_dedup", millions, "new", seconds, ratio, size)


def _against_identity(frame: Any, work: Callable[[Any], object]) -> tuple[float, float]:
    began = time.monotonic()
    spark_dedup.read(frame.mapInArrow(spark_dedup.identity, frame.schema))
    between = time.monotonic()
    work(frame)
    seconds = time.monotonic() - between
    return round(seconds, 2), round(seconds / (between - began), 1)


def _keys(spark: Any, start: int, count: int) -> Any:
    from pyspark.sql import functions as F

    number = F.lpad(F.col("id").cast("string"), 12, "0")
    return spark.range(start, start + count, numPartitions=8).select(
        F.concat(F.lit("order-"), number).alias("k")
    )


def _bytes(store: StoreConfig) -> int:
    """What the claims take in the store, with their indexes."""
    if store.is_redis:
        from redis import Redis

        with Redis.from_url(store.url) as client:
            return int(client.info("memory")["used_memory"])
    table = f"{store.table}_run_claims"
    engine = sa.create_engine(store.url)
    question = f"SELECT pg_total_relation_size('{table}')"
    if engine.dialect.name == "mysql":
        question = (
            f"SELECT file_size FROM information_schema.innodb_sys_tablespaces WHERE name LIKE '%/{table}'"
        )
    with engine.connect() as connection:
        size = connection.execute(sa.text(question)).scalar_one()
    engine.dispose()
    return int(size)


if __name__ == "__main__":
    typer.run(main)
