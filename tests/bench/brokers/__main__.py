"""python -m tests.bench.brokers --messages 20000 --rounds 3"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.bench.brokers import BARE, BROKERS, measure
from tests.bench.brokers.rounds import BATCH
from tests.bench.figures import Figure, Figures, faster


def main(
    broker: Annotated[list[str] | None, typer.Option(help="RabbitMQ, ActiveMQ, Kafka; default: all")] = None,
    messages: int = 20_000,
    rounds: int = 3,
    batch: int = BATCH,
) -> None:
    """Consume messages with the bare client, and through a Worker with a checker."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    with console.status("") as status:

        def on_step(step: str) -> None:
            status.update(step)
            if "left out" in step:
                console.print(step)

        figures = measure(
            brokers=broker or BROKERS, messages=messages, rounds=rounds, batch=batch, on_step=on_step
        )
    console.print(_table(figures))


def _table(figures: list[Figure]) -> Table:
    table = Table(title="End to end, fresh messages", title_justify="left")
    for name in ("broker", "who"):
        table.add_column(name)
    for name in ("batch", "messages/s", "of the bare client", "µs a message", "CPU µs", "p50 ms", "p99 ms"):
        table.add_column(name, justify="right")
    found = Figures(figures)
    for figure in figures:
        ratio = faster(figure, found.find(figure.where, BARE))
        table.add_row(
            figure.where,
            figure.who,
            str(figure.batch),
            f"{figure.rate:,.0f}",
            "" if ratio is None else f"{ratio:.2f} x",
            f"{figure.message_us:.1f}",
            f"{figure.cpu_us:.1f}",
            *(f"{us / 1000:.2f}" if us else "" for us in (figure.p50_us, figure.p99_us)),
        )
    return table


if __name__ == "__main__":
    typer.run(main)
