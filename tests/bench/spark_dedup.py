"""Rows a second through `run.dedup` and `bulk_dedup`, against mapInArrow identity on the same frame in the same round.

python tests/bench/spark_dedup.py --rows 2000000 --claims 10000000 --rounds 1

Long because it is one program: its steps, its contenders and its table.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import sqlalchemy as sa
import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from idempotent.adapters.spark import IdempotentRun, StoreConfig, bulk_dedup
from idempotent.migrations import upgrade
from tests.adapters.spark.support import sessions
from tests.bench import servers
from tests.support.services import PrivateServer

IDENTITY = "mapInArrow identity"
REDIS_BY_HAND = "Redis, SET NX in a script by hand"
# The claims of all rows fit into its memory: what is measured is not the disk.
STORES: dict[str, Callable[[], PrivateServer]] = {
    "redis": servers.redis,
    "mariadb": partial(servers.mariadb, "--innodb-buffer-pool-size=1G"),
    "postgresql": partial(servers.postgres, "-c", "shared_buffers=1GB"),
}
_SETTINGS = {
    "spark.driver.memory": "3g",
    # Spark's default; the tests' own sessions have small batches, to have several of them.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}
_CONSUMER = "bench"
# The least that a store of claims that expire can do for a key: the limit of what `run.dedup` could reach.
_CLAIM_BY_HAND = """local new = {}
for i = 1, #KEYS do
  new[i] = redis.call('SET', KEYS[i], ARGV[1], 'NX', 'PX', ARGV[2]) and 1 or 0
end
return new"""
_A_DAY_MS = 86_400_000
_CHUNK = 1000


@dataclass(frozen=True, slots=True)
class Figure:
    """One step.

    Attributes:
        step: what was done.
        rows: how many.
        seconds: median of the rounds.
        ratio: to the identity of the same round; median of the rounds.
    """

    step: str
    rows: int
    seconds: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Step:
    """What is measured.

    Attributes:
        name: for people.
        work: on a frame; this is timed.
        before: on the same frame, not timed.
        after: not timed: back to where it began, that no round finds a fuller store than the one before.
    """

    name: str
    work: Callable[[Any], object]
    before: Callable[[Any], object] = lambda _: None
    after: Callable[[], object] = lambda: None


def main(
    rows: int = 2_000_000,
    claims: int = 10_000_000,
    rounds: int = 3,
    stores: str = ",".join(STORES),
    bulk: bool = True,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Measure, and print a table.

    Args:
        rows: of the frame.
        claims: keys in Parquet for bulk_dedup.
        rounds: of each step, after a small one to warm up.
        stores: some of redis,mariadb,postgresql, with commas.
        bulk: measure bulk_dedup too.
        as_json: print JSON instead.
    """
    console = Console(stderr=as_json, highlight=False)
    with ExitStack() as stack:
        console.print("starting Spark and the servers")
        spark = stack.enter_context(session())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="idem-bench-")))
        steps = [*_baseline(), Step("dropDuplicates", lambda frame: read(frame.dropDuplicates(["k"])))]
        for store in filter(None, stores.split(",")):
            steps += stack.enter_context(_store_steps(store))
        if bulk:
            console.print(f"making {claims:,} claims")
            steps.append(_bulk_step(spark, claims, folder))
        figures = _measure(spark, steps, rows, rounds, folder, console.print)
    if as_json:
        typer.echo(json.dumps([asdict(figure) for figure in figures]))
    else:
        console.print(_table(figures))


def spark_figures(
    rows: int = 2_000_000, rounds: int = 3, *, tell: Callable[[str], object] = lambda _: None
) -> list[Figure]:
    """The identity, `run.dedup` of unique keys through Redis, and the same by hand: whose ratio has a target.

    Args:
        rows: of the frame.
        rounds: of each, after a small one to warm up.
        tell: is told how far it is.
    """
    with ExitStack() as stack:
        tell("starting Spark and Redis")
        spark = stack.enter_context(session())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="idem-bench-")))
        steps = [*_baseline(), *stack.enter_context(_store_steps("redis"))[:2]]
        return _measure(spark, steps, rows, rounds, folder, tell)


def _measure(
    spark: Any,
    steps: Sequence[Step],
    rows: int,
    rounds: int,
    folder: Path,
    tell: Callable[[str], object],
) -> list[Figure]:
    """All steps in each round, so that what else the machine does strikes them alike."""
    tell(f"making {rows:,} rows")
    small, frame = (_rows(spark, count, folder / f"rows-{count}") for count in (max(rows // 20, 1), rows))
    for step in steps:
        tell(f"warming up: {step.name}")
        for _ in range(2):
            _timed(step, small)
    seconds: dict[str, list[float]] = {step.name: [] for step in steps}
    for number in range(1, rounds + 1):
        for step in steps:
            tell(f"round {number} of {rounds}: {step.name}")
            seconds[step.name].append(_timed(step, frame))
            tell(f"  {seconds[step.name][-1]:.2f} s")
    base = seconds[IDENTITY]
    return [
        Figure(
            name,
            rows,
            round(statistics.median(taken), 3),
            round(statistics.median(one / other for one, other in zip(taken, base, strict=True)), 2),
        )
        for name, taken in seconds.items()
    ]


def _timed(step: Step, frame: Any) -> float:
    step.before(frame)
    began = time.monotonic()
    step.work(frame)
    seconds = time.monotonic() - began
    step.after()
    return seconds


def _baseline() -> list[Step]:
    return [Step(IDENTITY, lambda frame: read(frame.mapInArrow(identity, frame.schema)))]


@contextmanager
def _store_steps(name: str) -> Iterator[list[Step]]:
    """Steps on a server of their own, which is empty before each."""
    if name not in STORES:
        raise typer.BadParameter(f"--stores takes some of {', '.join(STORES)}, not {name}")
    with ExitStack() as stack:
        server = STORES[name]()
        stack.callback(server.close)
        server.start()
        store = StoreConfig(server.url)
        if not store.is_redis:
            upgrade(store.url)

        def dedup(frame: Any, run_id: str = "r1", *, unique: bool = True, commit: bool = False) -> None:
            with IdempotentRun.begin(store, consumer=_CONSUMER, run_id=run_id) as run:
                read(run.dedup(frame, key="k", order_by=["seq"], unique=unique))
                if commit:
                    with run.publishing(rows=frame.count()):
                        pass

        def step(what: str, work: Callable[[Any], object], **options: Any) -> Step:
            return Step(f"run.dedup, {server.name}, {what}", work, after=lambda: _empty(store), **options)

        yield [
            step("unique", dedup),
            _redis_by_hand(store) if store.is_redis else _sql_by_hand(server.name, store),
            step("in-run duplicates too", lambda frame: dedup(frame, unique=False)),
            step("evaluated again", dedup, before=dedup),
            step(
                "all are duplicates",
                lambda frame: dedup(frame, "r2"),
                before=lambda frame: dedup(frame, commit=True),
            ),
        ]


def _redis_by_hand(store: StoreConfig) -> Step:
    """SET NX for each key in one script, a thousand to a call, with nothing that a crash would need."""
    url = store.url

    def claim(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from redis import Redis

        with Redis.from_url(url) as client:
            sha = client.script_load(_CLAIM_BY_HAND)
            for batch in batches:
                keys, new = batch.column(0).to_pylist(), []
                for start in range(0, len(keys), _CHUNK):
                    part = keys[start : start + _CHUNK]
                    new += client.evalsha(sha, len(part), *part, b"run", _A_DAY_MS)
                yield batch.filter(pa.array(new, pa.int8()).cast(pa.bool_()))

    def work(frame: Any) -> None:
        read(frame.mapInArrow(claim, frame.schema))

    return Step(REDIS_BY_HAND, work, after=lambda: _empty(store))


def _sql_by_hand(name: str, store: StoreConfig) -> Step:
    """INSERT of each key's hash unless it is there, a thousand to a statement, with nothing that a crash would need."""
    url = store.url

    def claim(batches: Iterator[Any]) -> Iterator[Any]:
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        head, tail = ("INSERT", "ON CONFLICT DO NOTHING")
        if engine.dialect.name == "mysql":
            head, tail = "INSERT IGNORE", ""
        with engine.connect() as connection:
            for batch in batches:
                keys = [
                    hashlib.sha1(key.encode(), usedforsecurity=False).digest()
                    for key in batch.column(0).to_pylist()
                ]
                for start in range(0, len(keys), _CHUNK):
                    part = sorted(keys[start : start + _CHUNK])
                    rows = ", ".join(["(%s)"] * len(part))
                    connection.exec_driver_sql(f"{head} INTO by_hand (k) VALUES {rows} {tail}", tuple(part))
                yield batch
        engine.dispose()

    def in_sql(statement: str) -> None:
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql(statement)
        engine.dispose()

    in_sql(f"CREATE TABLE by_hand (k {'BINARY(20)' if url.startswith('mysql') else 'BYTEA'} PRIMARY KEY)")
    return Step(
        f"{name}, INSERT if absent by hand",
        lambda frame: read(frame.mapInArrow(claim, frame.schema)),
        after=lambda: in_sql("TRUNCATE TABLE by_hand"),
    )


def _empty(store: StoreConfig) -> None:
    if store.is_redis:
        from redis import Redis

        with Redis.from_url(store.url) as client:
            client.flushall(asynchronous=True)
        return
    engine = sa.create_engine(store.url)
    with engine.connect() as connection:
        for table in (f"{store.table}_run_claims", f"{store.table}_runs"):
            connection.execute(sa.text(f"TRUNCATE TABLE {table}"))
    engine.dispose()


def _bulk_step(spark: Any, count: int, folder: Path) -> Step:
    """Against a committed run of other keys."""
    from pyspark.sql import functions as F

    store, path = StoreConfig(f"sqlite:///{folder / 'bulk.db'}"), str(folder / "claims")
    upgrade(store.url)
    keys = spark.range(1_000_000_000, 1_000_000_000 + count).select(
        F.concat(F.lit("order-"), "id").alias("k")
    )
    with IdempotentRun.begin(store, consumer=_CONSUMER, run_id="before") as run:
        bulk_dedup(keys, claims=path, key="k", run=run, unique=True)
        with run.publishing(rows=keys.count()):
            pass

    def work(frame: Any) -> None:
        with IdempotentRun.begin(store, consumer=_CONSUMER, run_id=secrets.token_hex(4)) as run:
            bulk_dedup(frame, claims=path, key="k", run=run, unique=True)
            run.abort()

    return Step(f"bulk_dedup against {count:,}, claims written", work)


@contextmanager
def session() -> Iterator[Any]:
    spark = sessions.classic(**_SETTINGS)
    try:
        yield spark
    finally:
        spark.stop()


def _rows(spark: Any, count: int, path: Path) -> Any:
    from pyspark.sql import functions as F

    numbers = spark.range(count, numPartitions=8)
    text = F.concat(F.lit("order-"), F.lpad(F.col("id").cast("string"), 12, "0"))
    numbers.select(
        text.alias("k"), F.col("id").alias("seq"), F.repeat(F.lit("x"), 40).alias("payload")
    ).write.parquet(str(path))
    return spark.read.parquet(str(path))


def read(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def identity(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _table(figures: Iterable[Figure]) -> Table:
    table = Table("step", "rows/s", "seconds", "against identity")
    for figure in figures:
        speed = f"{figure.rows / figure.seconds:,.0f}"
        table.add_row(figure.step, speed, f"{figure.seconds:.2f}", f"{figure.ratio:.2f} x")
    return table


if __name__ == "__main__":
    typer.run(main)
