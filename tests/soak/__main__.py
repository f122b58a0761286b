"""`make soak`: RabbitMQ and Kafka, two workers each, and what they take of memory and descriptors, in build/soak/.

`python -m tests.soak --seconds 600 --rate 500` for ten minutes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.bench.memory import Flatness, Sample, flatness
from tests.soak.line import ROOT, Line, Reading
from tests.soak.picture import MIB, draw
from tests.support.pairs import started
from tests.support.services import PrivateKafka, PrivateMariaDb, PrivatePostgres, PrivateRabbitMq


def main(
    seconds: Annotated[float, typer.Option(min=4, help="How long.")] = 3600.0,
    rate: Annotated[int, typer.Option(min=20, help="Messages a second, to each broker.")] = 200,
    every: Annotated[float, typer.Option(help="Seconds from one reading to the next.")] = 10.0,
    into: Annotated[Path, typer.Option(help="Folder of the readings and the picture.")] = ROOT
    / "build"
    / "soak",
) -> None:
    """Watch workers for an hour. Ends with 1 when a process grows, or an effect is missing or repeated."""
    console = Console(highlight=False)
    into.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        rabbitmq, kafka, mariadb, postgres = (
            started(stack, console, kind())
            for kind in (PrivateRabbitMq, PrivateKafka, PrivateMariaDb, PrivatePostgres)
        )
        lines = [
            Line("RabbitMQ", rabbitmq.url, mariadb.url, "", rate),
            Line("Kafka", f"kafka://{kafka.url}", postgres.url, "transactional+", rate),
        ]
        for line in lines:
            stack.callback(line.close)
        console.print(
            f"Two workers on RabbitMQ with SqlChecker on MariaDB, two on Kafka with TransactionalSqlChecker on "
            f"PostgreSQL, {rate} messages a second to each broker, {seconds:g} s",
            soft_wrap=True,
        )
        readings = watch(lines, seconds, every, console, into / "readings.jsonl")
        for line in lines:
            line.finish()
        exact = {line.name: (line.sent, *line.count_effects()) for line in lines}
    draw(into / "soak.png", readings)
    is_right = report(console, readings, exact)
    console.print(f"Readings and picture: {into}", soft_wrap=True)
    raise typer.Exit(0 if is_right else 1)


def watch(lines: Sequence[Line], seconds: float, every: float, console: Console, path: Path) -> list[Reading]:
    """Read them so often, for so long; each reading is in the file at once."""
    readings: list[Reading] = []
    for line in lines:
        line.start()
    for line in lines:
        line.wait_for_work()
    began = time.monotonic()
    with path.open("w") as file, Progress(console=console, transient=True) as bar:
        task = bar.add_task("Working", total=seconds)
        while (at_s := time.monotonic() - began) < seconds:
            for line in lines:
                for reading in line.read(round(at_s, 1)):
                    readings.append(reading)
                    file.write(json.dumps(asdict(reading)) + "\n")
            file.flush()
            bar.update(task, completed=at_s)
            time.sleep(max(min(every, seconds - at_s), 0.0))
    return readings


def report(console: Console, readings: Sequence[Reading], exact: dict[str, tuple[int, int, int]]) -> bool:
    """Show it. Whether nothing grew, and each message has one effect."""
    table = Table(
        "process",
        "MiB, 2nd quarter",
        "MiB, last",
        "descriptors",
        "verdict",
        title="Workers",
        title_justify="left",
    )
    is_right = True
    for process, found in by_process(readings).items():
        is_right &= found.is_flat
        table.add_row(
            process,
            f"{found.early_bytes / MIB:.1f}",
            f"{found.late_bytes / MIB:.1f}",
            f"{found.descriptors:+g}",
            "flat" if found.is_flat else "[red]GROWS[/red]",
        )
    console.print(table)
    for name, (sent, effects, messages) in exact.items():
        is_right &= sent == effects == messages
        console.print(
            f"{name}: {sent:,} messages, {effects:,} effects of {messages:,} of them", soft_wrap=True
        )
    return is_right


def by_process(readings: Sequence[Reading]) -> dict[str, Flatness]:
    """What the readings say of each."""
    ordered = sorted(readings, key=lambda reading: (reading.process, reading.at_s))
    return {
        process: flatness([Sample(one.effects, one.resident_bytes, one.descriptors) for one in some])
        for process, some in groupby(ordered, key=lambda reading: reading.process)
    }


if __name__ == "__main__":
    try:
        typer.run(main)
    except RuntimeError as error:
        sys.exit(str(error))
