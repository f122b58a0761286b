"""What an effect for each key costs beside a plain `foreachPartition`, as ratios within each round.

python -m tests.bench.spark --requests 4000 --rows 100000 --rounds 3

Requests go to an HTTP server on this machine that takes a millisecond for each; rows go to a table beside the ledger.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import secrets
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from typing import Annotated, Any

import sqlalchemy as sa
import typer
from rich.console import Console
from rich.table import Table

from idempotent.adapters.spark import IdempotentRun, StoreConfig, idempotent_foreach
from idempotent.migrations import upgrade
from tests.adapters.spark.support import sessions
from tests.bench import servers

STORES = {"postgres": servers.postgres, "mariadb": servers.mariadb, "redis": servers.redis}
_TAKES_S = 0.001
_PARTITIONS = 4
_written = sa.Table(
    "bench_written",
    sa.MetaData(),
    sa.Column("k", sa.String(32), primary_key=True),
    sa.Column("amount", sa.Integer, nullable=False),
    sa.Column("note", sa.String(64), nullable=False),
)


@dataclass(frozen=True, slots=True)
class Step:
    """One way of an effect for each row.

    Attributes:
        effect: what is compared with each other: those of one name.
        name: for people; that of the plain one is "plain".
        work: goes over the frame.
    """

    effect: str
    name: str
    work: Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Figure:
    """The ratios of one step to the plain one of the same round."""

    effect: str
    step: str
    ratio: float
    rounds: list[float]


def main(
    requests: int = 4000,
    rows: int = 100_000,
    batch: int = 1000,
    rounds: int = 3,
    stores: str = ",".join(STORES),
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Measure, and print a table.

    Args:
        requests: to the HTTP server.
        rows: inserted.
        batch: rows of a batch.
        rounds: of each step, after one to warm up.
        stores: some of postgres,mariadb,redis, with commas.
        as_json: print JSON instead.
    """
    console = Console(stderr=as_json, highlight=False)
    figures: list[Figure] = []
    with ExitStack() as stack:
        spark = sessions.classic()
        stack.callback(spark.stop)
        port = stack.enter_context(_http_server())
        frames = {"request": _frame(spark, requests), "row": _frame(spark, rows)}
        for name in stores.split(","):
            server = STORES[name]()
            stack.callback(server.close)
            server.start()
            steps = [*_request_steps(server.url, port, batch), *_row_steps(server.url, batch)]
            figures += _measure(f"{server.name}: ", steps, frames, rounds, console.print)
    if as_json:
        typer.echo(json.dumps([asdict(figure) for figure in figures]))
        return
    table = Table("effect", "step", "against plain", "rounds")
    for each in figures:
        table.add_row(
            each.effect, each.step, f"{each.ratio:.2f} x", " ".join(f"{one:.2f}" for one in each.rounds)
        )
    console.print(table)


def _measure(
    prefix: str, steps: list[Step], frames: dict[str, Any], rounds: int, tell: Callable[[str], object]
) -> Iterator[Figure]:
    taken: dict[Step, list[float]] = {step: [] for step in steps}
    for number in range(rounds + 1):
        for step in steps:
            began = time.monotonic()
            step.work(frames[step.effect])
            taken[step].append(time.monotonic() - began)
            tell(f"{prefix}round {number}, {step.effect}, {step.name}: {taken[step][-1]:.2f} s")
    for step in steps:
        (plain,) = (each for each in steps if (each.effect, each.name) == (step.effect, "plain"))
        # The first round warms up.
        ratios = [round(one / other, 2) for one, other in zip(taken[step][1:], taken[plain][1:], strict=True)]
        yield Figure(prefix + step.effect, step.name, statistics.median(ratios), ratios)


def _request_steps(url: str, port: int, batch: int) -> list[Step]:
    request = functools.partial(_request, port)

    def all_of(rows: Iterable[Any]) -> None:
        for row in rows:
            request(row)

    def effects(frame: Any, **options: Any) -> None:
        with _run(url) as run:
            frame.foreachPartition(idempotent_foreach(run, key="k", **options))

    return [
        Step("request", "plain", lambda frame: frame.foreachPartition(all_of)),
        Step("request", "for each row", lambda frame: effects(frame, handler=request)),
        Step(
            "request", "batch_size", lambda frame: effects(frame, handler=all_of, batch_size=min(batch, 100))
        ),
    ]


def _row_steps(url: str, batch: int) -> list[Step]:
    if url.startswith("redis"):
        return []

    def plain(rows: Iterable[Any]) -> None:
        source = iter(rows)
        while part := list(islice(source, batch)):
            with _engine(url).begin() as connection:
                _insert(part, connection)

    def emptied(work: Callable[[Any], object]) -> Callable[[Any], object]:
        def call(frame: Any) -> None:
            with _engine(url).begin() as connection:
                connection.execute(_written.delete())
            work(frame)

        return call

    def effects(frame: Any) -> None:
        with _run(url) as run:
            frame.foreachPartition(
                idempotent_foreach(run, key="k", handler=_insert, batch_size=batch, transactional=True)
            )

    with _engine(url).begin() as connection:
        _written.create(connection)
    return [
        Step("row", "plain", emptied(lambda frame: frame.foreachPartition(plain))),
        Step("row", "batch_size, transactional", emptied(effects)),
    ]


def _run(url: str) -> IdempotentRun:
    store = StoreConfig(url)
    if not store.is_redis:
        upgrade(url)
    name = secrets.token_hex(4)
    return IdempotentRun.begin(store, consumer=name, run_id=name)


def _request(port: int, row: Any) -> None:
    connection = _connection(port)
    connection.request("POST", "/charge", body=row["k"])
    assert connection.getresponse().read() == b"done"


@functools.cache
def _connection(port: int) -> HTTPConnection:
    return HTTPConnection("127.0.0.1", port)


def _insert(rows: list[Any], connection: sa.Connection) -> None:
    connection.execute(
        _written.insert(), [{"k": row["k"], "amount": row["v"], "note": "x" * 40} for row in rows]
    )


@functools.cache
def _engine(url: str) -> sa.Engine:
    return sa.create_engine(url)


class _Charge(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(_TAKES_S)
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")

    def log_message(self, *_: object) -> None:
        """Nothing."""


def _serve(ports: Any) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Charge) as server:
        ports.put(server.server_address[1])
        server.serve_forever()


@contextmanager
def _http_server() -> Iterator[int]:
    """In a process of its own, as it is anywhere else."""
    context = multiprocessing.get_context("fork")
    ports = context.Queue()
    process = context.Process(target=_serve, args=(ports,), daemon=True)
    process.start()
    try:
        yield ports.get(timeout=30)
    finally:
        process.kill()
        process.join()


def _frame(spark: Any, count: int) -> Any:
    from pyspark.sql import functions as F

    numbers = spark.range(count, numPartitions=_PARTITIONS)
    frame = numbers.select(
        F.concat(F.lit("order-"), F.lpad(F.col("id").cast("string"), 12, "0")).alias("k"),
        F.col("id").alias("v"),
    ).cache()
    frame.count()
    return frame
